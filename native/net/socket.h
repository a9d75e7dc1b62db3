// Descriptors and TCP sockets. All are close-on-exec, non-blocking, and closed in forked children:
// a child that kept one would hide the death of its parent from the peers.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <utility>

namespace inlay::net {

using Clock = std::chrono::steady_clock;

// How often this process's ancestors forked since they loaded the library. What was made under
// another number belongs to a parent.
unsigned fork_generation();

class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd);
  Descriptor(Descriptor&& other) noexcept
      : fd_(std::exchange(other.fd_, -1)), generation_(other.generation_) {}
  Descriptor& operator=(Descriptor&& other) noexcept;
  ~Descriptor() { close(); }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  void close();

 private:
  int fd_ = -1;
  unsigned generation_ = 0;
};

// Wakes one sleeper in poll or epoll.
class WakeUp {
 public:
  WakeUp();
  void signal() const;
  void reset() const;
  // Whether there may be something to reset; asks nobody.
  bool signalled() const { return signalled_.load(std::memory_order_relaxed); }
  int fd() const { return fd_.get(); }

 private:
  Descriptor fd_;
  mutable std::atomic<bool> signalled_{false};
};

struct Listener {
  Descriptor socket;
  std::string address;  // with the port that the system chose for port 0
};

// "host:port" or "[v6]:port". Throws ArgumentError for other forms, TransferFailure(kAddressInUse).
Listener listen_at(const std::string& address);

// The next connection, over TCP with our options; invalid when none waits. `exhausted`: the process
// has no descriptor left.
Descriptor accept_from(const Descriptor& listener, bool& exhausted);

// Throws TransferFailure(kPeerUnreachable) when nobody is there before `end`. `interrupted` is
// asked each 100 ms and may throw.
Descriptor connect_to(const std::string& address, Clock::time_point end,
                      const std::function<void()>& interrupted);

// Begins a connection from the local host address (empty: any) to "host:port", both numeric.
// POLLOUT tells of its end, connect_error() of its success. Invalid when it fails at once.
Descriptor begin_connect(const std::string& local_host, const std::string& address, int& error);
int connect_error(const Descriptor& socket);  // 0 or an errno

// The two ends of a connected socket, as "host:port".
std::string local_address(const Descriptor& socket);
std::string remote_address(const Descriptor& socket);
bool is_loopback(const Descriptor& socket);
// "::1" of "[::1]:80", and back.
std::string host_of(const std::string& address);
std::string with_port(const std::string& host, const std::string& port);

// What the kernel knows of a connection.
struct TcpState {
  uint32_t unacknowledged = 0;  // segments
  std::chrono::milliseconds since_ack{0};
  std::chrono::milliseconds since_data{0};  // that was received
  std::chrono::microseconds round_trip{0};
};
TcpState tcp_state(const Descriptor& socket);

// Waits for `events` of poll(2) at most until `end`; false when that came first.
bool wait_for(const Descriptor& socket, short events, Clock::time_point end,
              const std::function<void()>& interrupted);

// Drops what is unsent, tells the peer, and wakes all who wait for the socket, which stays open so
// that its number is not given to another file under them.
void disconnect(const Descriptor& socket);

void fill_random(std::span<std::byte> bytes);

}  // namespace inlay::net
