#include "side_channel.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <system_error>

#include "../core/errors.h"

namespace inlay::net {

namespace {

constexpr int kBacklog = 64;
constexpr int kRetry_ms = 1;

Descriptor make_socket() {
  return Descriptor(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
}

socklen_t set_name(sockaddr_un& address, const SideName& name) {
  constexpr char kPrefix[] = "inlay-";
  static constexpr char kDigits[] = "0123456789abcdef";
  address = {};
  address.sun_family = AF_UNIX;
  char* at = address.sun_path + 1;  // a name that begins with 0 is abstract
  std::memcpy(at, kPrefix, sizeof(kPrefix) - 1);
  at += sizeof(kPrefix) - 1;
  for (const std::byte byte : name) {
    *at++ = kDigits[static_cast<unsigned>(byte) >> 4];
    *at++ = kDigits[static_cast<unsigned>(byte) & 15];
  }
  return static_cast<socklen_t>(at - reinterpret_cast<char*>(&address));
}

}  // namespace

SideListener listen_side() {
  SideListener listener{{}, make_socket()};
  fill_random(listener.name);
  sockaddr_un address;
  const socklen_t size = set_name(address, listener.name);
  const int socket = listener.socket.get();
  if (!listener.socket.valid() ||
      bind(socket, reinterpret_cast<const sockaddr*>(&address), size) != 0 ||
      listen(socket, kBacklog) != 0)
    throw ResourceError("the system gives no Unix socket (" +
                        std::generic_category().message(errno) + ")");
  return listener;
}

Descriptor connect_side(const SideName& name, Clock::time_point end, std::string& problem) {
  sockaddr_un address;
  const socklen_t size = set_name(address, name);
  for (;;) {
    Descriptor socket = make_socket();
    if (socket.valid() &&
        connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), size) == 0)
      return socket;
    // A full queue of connections: such sockets do not wait by themselves.
    if (errno == EAGAIN && Clock::now() < end) {
      poll(nullptr, 0, kRetry_ms);
      continue;
    }
    problem =
        errno == ECONNREFUSED
            ? "its Unix socket is not there: it is in another network namespace, or gone"
            : "its Unix socket does not accept (" + std::generic_category().message(errno) + ")";
    return {};
  }
}

std::optional<Credentials> credentials_of(const Descriptor& socket) {
  ucred credentials{};
  socklen_t size = sizeof(credentials);
  if (getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0) return {};
  return Credentials{credentials.pid, credentials.uid};
}

bool is_near(const Descriptor& socket) {
  const auto who = credentials_of(socket);
  return who && who->user == geteuid() && who->pid > 0;
}

SideIo send_side(const Descriptor& socket, std::span<const std::byte> message,
                 const Descriptor* descriptor) {
  iovec part{const_cast<std::byte*>(message.data()), message.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  if (descriptor != nullptr) {
    header.msg_control = control.data();
    header.msg_controllen = control.size();
    cmsghdr* rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof(int));
    const int fd = descriptor->get();
    std::memcpy(CMSG_DATA(rights), &fd, sizeof(fd));
  }
  ssize_t n;
  do n = sendmsg(socket.get(), &header, MSG_NOSIGNAL | MSG_DONTWAIT);
  while (n < 0 && errno == EINTR);
  if (n == static_cast<ssize_t>(message.size())) return SideIo::kDone;
  return n < 0 && (errno == EAGAIN || errno == ENOBUFS) ? SideIo::kLater : SideIo::kOver;
}

SideIo receive_side(const Descriptor& socket, SideMessage& message) {
  message.size = 0;
  message.descriptor = {};
  iovec part{message.buffer.data(), message.buffer.size()};
  constexpr std::size_t kMostDescriptors = 4;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kMostDescriptors * sizeof(int))> control{};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = control.data();
  header.msg_controllen = control.size();
  ssize_t n;
  do n = recvmsg(socket.get(), &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  while (n < 0 && errno == EINTR);
  if (n < 0) return errno == EAGAIN ? SideIo::kLater : SideIo::kOver;
  // All that came, so that none stays open; the first is the message's.
  for (cmsghdr* part_of = CMSG_FIRSTHDR(&header); part_of != nullptr;
       part_of = CMSG_NXTHDR(&header, part_of)) {
    if (part_of->cmsg_level != SOL_SOCKET || part_of->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (part_of->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(part_of) + i * sizeof(int), sizeof(fd));
      Descriptor received(fd);
      if (!message.descriptor.valid()) message.descriptor = std::move(received);
    }
  }
  message.size = static_cast<std::size_t>(n);
  if (n == 0 || (header.msg_flags & MSG_TRUNC) != 0) return SideIo::kOver;
  return SideIo::kDone;
}

SideIo SideOutbox::send(const Descriptor& socket, std::vector<std::byte> message,
                        std::shared_ptr<const Descriptor> descriptor) {
  if (kept_.size() == kMaxKept) return SideIo::kOver;
  kept_.push_back({std::move(message), std::move(descriptor)});
  return flush(socket);
}

SideIo SideOutbox::flush(const Descriptor& socket) {
  while (!kept_.empty()) {
    const Kept& next = kept_.front();
    const SideIo io = send_side(socket, next.message, next.descriptor.get());
    if (io != SideIo::kDone) return io;
    kept_.pop_front();
  }
  return SideIo::kDone;
}

}  // namespace inlay::net
