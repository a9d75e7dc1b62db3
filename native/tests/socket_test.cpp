// Options of connections, as the kernel says them.
#include "../net/socket.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <string_view>

#include "check.h"

using namespace inlay;

namespace {

// Whatever the system's default is: it is bbr on many machines.
bool avoids_bbr(const net::Descriptor& socket) {
  std::array<char, 16> name{};
  socklen_t size = name.size() - 1;
  CHECK(getsockopt(socket.get(), IPPROTO_TCP, TCP_CONGESTION, name.data(), &size) == 0);
  return !std::string_view(name.data()).starts_with("bbr");
}

}  // namespace

int main() {
  const net::Listener listener = net::listen_at("127.0.0.1:0");
  // As if the system's default were bbr; where there is none it stays another one.
  setsockopt(listener.socket.get(), IPPROTO_TCP, TCP_CONGESTION, "bbr", 3);
  const net::Descriptor left =
      net::connect_to(listener.address, net::Clock::now() + std::chrono::seconds(5), [] {});
  pollfd waiting{listener.socket.get(), POLLIN, 0};
  CHECK(poll(&waiting, 1, 5000) == 1);
  bool exhausted = false;
  const net::Descriptor right = net::accept_from(listener.socket, exhausted);
  CHECK(left.valid() && right.valid());
  CHECK(avoids_bbr(left));
  CHECK(avoids_bbr(right));
  int error = 0;
  const net::Descriptor begun = net::begin_connect("127.0.0.1", listener.address, error);
  CHECK(begun.valid() && avoids_bbr(begun));
  return 0;
}
