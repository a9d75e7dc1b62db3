// Targets in processes of their own. A process with one thread forks them: after a fork of one with
// many, the thread sanitizer and the C library promise little.
#pragma once

#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <cstdlib>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "../../net/side_channel.h"
#include "host.h"

namespace random_test {

using Transports = std::vector<std::string>;

// A socket that keeps the bounds of messages, between this process and one that it forks. Unlike an
// engine's descriptors it stays open in a child.
class Channel {
 public:
  Channel() = default;
  explicit Channel(int socket) : socket_(socket) {}
  Channel(Channel&& other) noexcept : socket_(std::exchange(other.socket_, -1)) {}
  Channel& operator=(Channel&& other) noexcept {
    std::swap(socket_, other.socket_);
    other.close();
    return *this;
  }
  ~Channel() { close(); }

  static std::pair<Channel, Channel> make() {
    std::array<int, 2> ends;
    EXPECT(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) == 0, "a socket");
    return {Channel(ends[0]), Channel(ends[1])};
  }

  // False: nobody is at the other end.
  template <typename T>
  bool put(const T& value, const Channel* with = nullptr) const {
    const auto bytes = std::as_bytes(std::span(&value, 1));
    const auto sent = with == nullptr ? inlay::net::Descriptor() : with->copy();
    return inlay::net::send_side(copy(), bytes, with == nullptr ? nullptr : &sent) ==
           inlay::net::SideIo::kDone;
  }
  template <typename T>
  bool get(T& value, int timeout_ms, Channel* with = nullptr) const {
    pollfd polled{socket_, POLLIN, 0};
    if (poll(&polled, 1, timeout_ms) <= 0) return false;
    inlay::net::SideMessage message;
    if (inlay::net::receive_side(copy(), message) != inlay::net::SideIo::kDone) return false;
    EXPECT(message.size == sizeof(T), "a message of another kind");
    std::memcpy(&value, message.buffer.data(), sizeof(T));
    if (with != nullptr) *with = Channel(fcntl(message.descriptor.get(), F_DUPFD_CLOEXEC, 0));
    return true;
  }

 private:
  void close() {
    if (socket_ >= 0) ::close(std::exchange(socket_, -1));
  }
  inlay::net::Descriptor copy() const {
    return inlay::net::Descriptor(fcntl(socket_, F_DUPFD_CLOEXEC, 0));
  }

  int socket_ = -1;
};

constexpr int kAnswer_ms = 60000;

enum class Order : uint8_t { kRemove, kAdd, kEnd };
struct ToTarget {
  Order order;
  Kind kind;
  bool cancel;
};
struct FromTarget {
  bool done;
  bool has_disk;
  // In its first message.
  char address[64];
  inlay::net::EngineId engine;
};

struct ToZygote {
  pid_t reap;  // 0: fork a target
  int target;
  uint32_t transports;  // which of those that the zygote knows
};
struct FromZygote {
  pid_t pid;
  int status;
};

// A target's process from its fork to its end, which runs what the sanitizers do then.
[[noreturn]] inline void run_target(const World& world, int target, const Transports& transports,
                                    const Channel& channel) {
  {
    Host host(world, target, transports);
    FromTarget hello{true, host.has(Kind::kDisk), {}, host.engine().id()};
    std::strncpy(hello.address, host.engine().address().c_str(), sizeof(hello.address) - 1);
    channel.put(hello);
    for (ToTarget order; channel.get(order, -1);) {
      FromTarget answer{true, false, {}, {}};
      if (order.order == Order::kRemove) answer.done = host.remove(order.kind, order.cancel);
      if (order.order == Order::kAdd) host.add(order.kind);
      channel.put(answer);
      if (order.order == Order::kEnd) break;
    }
  }
  std::exit(0);
}

class Zygote {
 public:
  // Before there are other threads.
  Zygote(const World& world, const std::vector<Transports>& transports) {
    auto [here, there] = Channel::make();
    pid_ = fork();
    EXPECT(pid_ >= 0, "a fork");
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      here = {};
      run(world, transports, there);
    }
    channel_ = std::move(here);
  }
  Zygote(const Zygote&) = delete;
  Zygote& operator=(const Zygote&) = delete;
  ~Zygote() {
    channel_ = {};
    int status = 0;
    EXPECT(waitpid(pid_, &status, 0) == pid_ && status == 0,
           "the process that forks ended with status " + std::to_string(status));
  }

  pid_t fork_target(int target, uint32_t transports, Channel& channel) {
    return ask({0, target, transports}, &channel).pid;
  }
  // Waits for its end; its status as of waitpid().
  int reap(pid_t pid) { return ask({pid, 0, 0}, nullptr).status; }

 private:
  FromZygote ask(const ToZygote& question, Channel* channel) {
    const std::lock_guard lock(mutex_);
    FromZygote answer;
    EXPECT(channel_.put(question) && channel_.get(answer, kAnswer_ms, channel),
           "the process that forks does not answer");
    return answer;
  }

  [[noreturn]] static void run(const World& world, const std::vector<Transports>& transports,
                               Channel& channel) {
    for (ToZygote question; channel.get(question, -1);) {
      FromZygote answer{};
      if (question.reap != 0) {
        answer.pid = waitpid(question.reap, &answer.status, 0);
        channel.put(answer);
        continue;
      }
      auto [here, there] = Channel::make();
      answer.pid = fork();
      EXPECT(answer.pid >= 0, "a fork");
      if (answer.pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        channel = {};
        here = {};
        run_target(world, question.target, transports[question.transports], there);
      }
      channel.put(answer, &here);
    }
    std::exit(0);
  }

  std::mutex mutex_;
  pid_t pid_ = 0;
  Channel channel_;
};

}  // namespace random_test
