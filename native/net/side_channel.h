// Messages, with descriptors, between engines of one host: a Unix socket that keeps the bounds of
// messages. The other end is known by its process and its user, which the kernel tells.
//
// The socket's name is abstract: nothing is left in a file system when a process is killed, and a
// process in another network namespace does not see it.
#pragma once

#include <sys/types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "socket.h"

namespace inlay::net {

using SideName = std::array<std::byte, 16>;  // random, so that nobody has it before us

struct Credentials {
  pid_t pid;
  uid_t user;
};

struct SideListener {
  SideName name{};
  Descriptor socket;
};

// Throws ResourceError.
SideListener listen_side();

// Invalid when nobody is there, in this network namespace, under this name; `problem` says why.
Descriptor connect_side(const SideName& name, Clock::time_point end, std::string& problem);

// None when the system does not tell.
std::optional<Credentials> credentials_of(const Descriptor& socket);
// Whether the other end is a process of our user that we see by its number, which one in another
// PID namespace has not. Nobody else may share memory with us.
bool is_near(const Descriptor& socket);

constexpr std::size_t kMaxSideMessage = 16384;

struct SideMessage {
  std::array<std::byte, kMaxSideMessage> buffer;
  std::size_t size = 0;
  Descriptor descriptor;  // what came with it

  std::span<const std::byte> bytes() const { return {buffer.data(), size}; }
};

enum class SideIo { kDone, kLater, kOver };

// One message each, without waiting. kOver: the other end is gone, or sent what is no message.
SideIo send_side(const Descriptor& socket, std::span<const std::byte> message,
                 const Descriptor* descriptor = nullptr);
SideIo receive_side(const Descriptor& socket, SideMessage& message);

// Messages that wait until the other end reads.
class SideOutbox {
 public:
  // kLater: it is kept for flush(). kOver also when too many are.
  SideIo send(const Descriptor& socket, std::vector<std::byte> message,
              std::shared_ptr<const Descriptor> descriptor = nullptr);
  SideIo flush(const Descriptor& socket);  // kDone: nothing is kept

 private:
  static constexpr std::size_t kMaxKept = 4096;
  struct Kept {
    std::vector<std::byte> message;
    std::shared_ptr<const Descriptor> descriptor;
  };
  std::deque<Kept> kept_;
};

}  // namespace inlay::net
