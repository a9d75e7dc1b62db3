#include "socket.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <system_error>

#include "../core/errors.h"
#include "../core/status.h"

namespace inlay::net {

namespace {

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

std::atomic<unsigned> generation{0};

// One bit per descriptor that is ours. Numbers beyond stay open in children.
constexpr int kMaxTracked = 1 << 17;
std::array<std::atomic<uint64_t>, kMaxTracked / 64> owned{};

void track(int fd, bool ours) {
  if (fd < 0 || fd >= kMaxTracked) return;
  const uint64_t bit = uint64_t{1} << (fd % 64);
  std::atomic<uint64_t>& word = owned[static_cast<std::size_t>(fd / 64)];
  if (ours)
    word.fetch_or(bit);
  else
    word.fetch_and(~bit);
}

void close_in_child() {
  generation.fetch_add(1);
  for (std::size_t i = 0; i < owned.size(); ++i)
    for (uint64_t bits = owned[i].exchange(0); bits != 0; bits &= bits - 1)
      ::close(static_cast<int>(64 * i) + __builtin_ctzll(bits));
}

// Registered when the library is loaded, before anyone can own a descriptor.
const int fork_handler = pthread_atfork(nullptr, nullptr, close_in_child);

std::string error_text(int error) { return std::generic_category().message(error); }

AddressList resolve(const std::string& address, int flags) {
  const std::size_t colon = address.rfind(':');
  std::string host = address.substr(0, colon == std::string::npos ? 0 : colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']')
    host = host.substr(1, host.size() - 2);
  if (colon == std::string::npos || host.empty() || colon + 1 == address.size())
    throw ArgumentError("address: must be host:port or [v6]:port, got '" + address + "'");
  const std::string port = address.substr(colon + 1);
  // The resolver would take 65537 for 1.
  if (port.find_first_not_of("0123456789") != std::string::npos || port.size() > 5 ||
      std::stoi(port) > 65535)
    throw ArgumentError("address: the port of '" + address + "' must be in 0..65535");
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), port.c_str(), &hints, &found);
  if (error != 0)
    throw ArgumentError("address: '" + address + "' names no host and port (" +
                        gai_strerror(error) + ")");
  return {found, freeaddrinfo};
}

std::string text_of(const sockaddr_storage& address, socklen_t size) {
  char host[NI_MAXHOST];
  char port[NI_MAXSERV];
  if (getnameinfo(reinterpret_cast<const sockaddr*>(&address), size, host, sizeof(host), port,
                  sizeof(port), NI_NUMERICHOST | NI_NUMERICSERV) != 0)
    return {};
  return with_port(host, port);
}

// bbr paces by rates that were asked for, which sparse slices never show: on links of 400 to 1600
// Mbit/s, half loaded with 64 KiB slices, the 99th percentile was 50 ms, with cubic 2; and loopback
// carries 4.5 GB/s, with cubic 6.3. Who may not choose cubic may choose reno.
void avoid_bbr(int socket) {
  std::array<char, 16> name{};
  socklen_t size = name.size() - 1;
  if (getsockopt(socket, IPPROTO_TCP, TCP_CONGESTION, name.data(), &size) != 0) return;
  if (!std::string_view(name.data()).starts_with("bbr")) return;
  if (setsockopt(socket, IPPROTO_TCP, TCP_CONGESTION, "cubic", 5) != 0)
    setsockopt(socket, IPPROTO_TCP, TCP_CONGESTION, "reno", 4);
}

void set_options(int socket) {
  const int on = 1;
  setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  avoid_bbr(socket);
}

Descriptor new_socket(int family) {
  const int fd = ::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) throw ResourceError("the system gives no socket: " + error_text(errno));
  return Descriptor(fd);
}

}  // namespace

unsigned fork_generation() {
  (void)fork_handler;
  return generation.load(std::memory_order_relaxed);
}

Descriptor::Descriptor(int fd) : fd_(fd), generation_(fork_generation()) { track(fd, true); }

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  if (this != &other) {
    close();
    fd_ = std::exchange(other.fd_, -1);
    generation_ = other.generation_;
  }
  return *this;
}

void Descriptor::close() {
  if (fd_ >= 0 && generation_ == fork_generation()) {
    track(fd_, false);
    ::close(fd_);
  }
  fd_ = -1;
}

WakeUp::WakeUp() : fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!fd_.valid()) throw ResourceError("the system gives no eventfd: " + error_text(errno));
}

void WakeUp::signal() const {
  const uint64_t one = 1;
  (void)!::write(fd_.get(), &one, sizeof(one));
  signalled_.store(true, std::memory_order_relaxed);
}

void WakeUp::reset() const {
  signalled_.store(false, std::memory_order_relaxed);
  uint64_t count = 0;
  (void)!::read(fd_.get(), &count, sizeof(count));
}

Listener listen_at(const std::string& address) {
  const AddressList list = resolve(address, AI_PASSIVE);
  Descriptor socket = new_socket(list->ai_family);
  const int on = 1;
  setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (bind(socket.get(), list->ai_addr, list->ai_addrlen) != 0 || listen(socket.get(), 128) != 0) {
    if (errno == EADDRINUSE)
      throw TransferFailure(Status::kAddressInUse,
                            "address " + address + " is taken by another process");
    throw ArgumentError("listen: cannot listen at '" + address + "': " + error_text(errno));
  }
  std::string bound = local_address(socket);
  return {std::move(socket), std::move(bound)};
}

Descriptor accept_from(const Descriptor& listener, bool& exhausted) {
  const int fd = accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  exhausted = fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS);
  if (fd < 0) return {};
  Descriptor socket(fd);
  set_options(fd);
  return socket;
}

bool wait_for(const Descriptor& socket, short events, Clock::time_point end,
              const std::function<void()>& interrupted) {
  for (;;) {
    using std::chrono::milliseconds;
    const auto left = std::chrono::ceil<milliseconds>(end - Clock::now());
    const auto nap = std::clamp(left, milliseconds(0), milliseconds(100));
    pollfd entry{socket.get(), events, 0};
    if (poll(&entry, 1, static_cast<int>(nap.count())) > 0) return true;
    if (left <= milliseconds(0)) return false;
    interrupted();
  }
}

Descriptor connect_to(const std::string& address, Clock::time_point end,
                      const std::function<void()>& interrupted) {
  const AddressList list = resolve(address, 0);
  Descriptor socket = new_socket(list->ai_family);
  set_options(socket.get());
  int error = 0;
  if (connect(socket.get(), list->ai_addr, list->ai_addrlen) != 0) {
    error = errno;
    if (error == EINPROGRESS) {
      error = ETIMEDOUT;
      if (wait_for(socket, POLLOUT, end, interrupted)) {
        socklen_t size = sizeof(error);
        getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size);
      }
    }
  }
  if (error != 0)
    throw TransferFailure(Status::kPeerUnreachable,
                          "peer " + address + " cannot be reached over tcp: " + error_text(error),
                          {}, address);
  return socket;
}

Descriptor begin_connect(const std::string& local_host, const std::string& address, int& error) {
  const AddressList list = resolve(address, AI_NUMERICHOST);
  Descriptor socket = new_socket(list->ai_family);
  set_options(socket.get());
  error = 0;
  if (!local_host.empty()) {
    const int on = 1;
    setsockopt(socket.get(), IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof(on));
    const AddressList from = resolve(with_port(local_host, "0"), AI_NUMERICHOST);
    if (bind(socket.get(), from->ai_addr, from->ai_addrlen) != 0) error = errno;
  }
  if (error == 0 && connect(socket.get(), list->ai_addr, list->ai_addrlen) != 0 &&
      errno != EINPROGRESS)
    error = errno;
  if (error != 0) socket.close();
  return socket;
}

int connect_error(const Descriptor& socket) {
  int error = 0;
  socklen_t size = sizeof(error);
  if (getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size) != 0) return errno;
  return error;
}

std::string local_address(const Descriptor& socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &size);
  return text_of(address, size);
}

std::string remote_address(const Descriptor& socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  getpeername(socket.get(), reinterpret_cast<sockaddr*>(&address), &size);
  return text_of(address, size);
}

bool is_loopback(const Descriptor& socket) {
  const std::string host = host_of(local_address(socket));
  return host.starts_with("127.") || host == "::1";
}

std::string host_of(const std::string& address) {
  std::string host = address.substr(0, address.rfind(':'));
  if (host.size() > 2 && host.front() == '[') host = host.substr(1, host.size() - 2);
  return host;
}

std::string with_port(const std::string& host, const std::string& port) {
  return (host.find(':') == std::string::npos ? host : "[" + host + "]") + ":" + port;
}

TcpState tcp_state(const Descriptor& socket) {
  tcp_info info{};
  socklen_t size = sizeof(info);
  if (getsockopt(socket.get(), IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return {};
  using std::chrono::milliseconds;
  return {info.tcpi_unacked, milliseconds(info.tcpi_last_ack_recv),
          milliseconds(info.tcpi_last_data_recv), std::chrono::microseconds(info.tcpi_rtt)};
}

void disconnect(const Descriptor& socket) {
  sockaddr none{};
  none.sa_family = AF_UNSPEC;
  // A reset: unlike shutdown(2) it throws away what the kernel still holds of ours.
  ::connect(socket.get(), &none, sizeof(none));
}

void fill_random(std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = getrandom(bytes.data(), bytes.size(), 0);
    if (n > 0) bytes = bytes.subspan(static_cast<std::size_t>(n));
  }
}

}  // namespace inlay::net
