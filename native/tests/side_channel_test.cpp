#include "../net/side_channel.h"

#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "check.h"
#include "child.h"

namespace {

using namespace inlay::net;

Clock::time_point soon() { return Clock::now() + std::chrono::seconds(5); }

void await(const Descriptor& socket) {
  pollfd entry{socket.get(), POLLIN, 0};
  CHECK(poll(&entry, 1, 5000) == 1);
}

Descriptor accept_one(const SideListener& listener) {
  await(listener.socket);
  bool exhausted = true;
  Descriptor socket = accept_from(listener.socket, exhausted);
  CHECK(socket.valid() && !exhausted);
  return socket;
}

std::array<std::byte, 3> text(const char* three) {
  std::array<std::byte, 3> bytes;
  std::memcpy(bytes.data(), three, 3);
  return bytes;
}

}  // namespace

int main() {
  const SideListener listener = listen_side();
  std::string problem;
  bool exhausted = true;
  CHECK(!accept_from(listener.socket, exhausted).valid() && !exhausted);
  CHECK(!connect_side(SideName{}, soon(), problem).valid() && !problem.empty());

  const SideName name = listener.name;
  Child child([&](Child&) {
    std::string none;
    const Descriptor socket = connect_side(name, soon(), none);
    CHECK(socket.valid() && credentials_of(socket)->pid == getppid());
    const Descriptor memory(memfd_create("test", MFD_CLOEXEC));
    CHECK(write(memory.get(), "12345", 5) == 5);
    CHECK(send_side(socket, text("one"), &memory) == SideIo::kDone);
    CHECK(send_side(socket, text("two")) == SideIo::kDone);
    await(socket);
    SideMessage message;
    CHECK(receive_side(socket, message) == SideIo::kDone && message.size == 3);
  });
  Descriptor socket = accept_one(listener);
  CHECK(credentials_of(socket)->pid == child.pid() && credentials_of(socket)->user == getuid());
  CHECK(is_near(socket));
  await(socket);
  SideMessage message;
  CHECK(receive_side(socket, message) == SideIo::kDone);
  CHECK(std::memcmp(message.bytes().data(), "one", 3) == 0 && message.descriptor.valid());
  char read_back[5];
  CHECK(pread(message.descriptor.get(), read_back, 5, 0) == 5);
  CHECK(std::memcmp(read_back, "12345", 5) == 0);
  await(socket);
  CHECK(receive_side(socket, message) == SideIo::kDone);
  CHECK(std::memcmp(message.bytes().data(), "two", 3) == 0 && !message.descriptor.valid());
  CHECK(receive_side(socket, message) == SideIo::kLater);
  CHECK(send_side(socket, text("end")) == SideIo::kDone);
  CHECK(child.succeeded());
  await(socket);
  CHECK(receive_side(socket, message) == SideIo::kOver);

  // A process of another user.
  if (geteuid() == 0) {
    Child stranger([&](Child& us) {
      CHECK(setuid(65534) == 0);
      std::string none;
      const Descriptor socket = connect_side(name, soon(), none);
      CHECK(socket.valid());
      us.hear();
    });
    CHECK(!is_near(accept_one(listener)));
    stranger.tell();
    CHECK(stranger.succeeded());
  }

  // A reader that does not read: the sender learns it instead of waiting.
  std::string none;
  const Descriptor writer = connect_side(name, soon(), none);
  const Descriptor reader = accept_one(listener);
  SideIo result = SideIo::kDone;
  for (int i = 0; i < 100000 && result == SideIo::kDone; ++i)
    result = send_side(writer, text("abc"));
  CHECK(result == SideIo::kLater);
}
