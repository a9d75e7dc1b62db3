// Bytes that were held up on the way, and arrive when their memory is used for something else.
//
// Two engines and a relay between them that keeps what it is told to keep, as a link does that is
// cut with bytes in its queue.
#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "check.h"
#include "engines.h"

namespace {

using namespace inlay;
using namespace inlay::transfer;
using namespace engine_test;
using namespace std::chrono_literals;

constexpr uint64_t kSize = 1 << 20;

// Connections are numbered as they come: 0 is the small lane, 1 the bulk lane.
class Relay {
 public:
  explicit Relay(const Engine& target)
      : target_(target.address()),
        listener_(net::listen_at("127.0.0.1:0")),
        thread_([this] { run(); }) {}
  ~Relay() {
    stop_ = true;
    thread_.join();
  }
  const std::string& address() const { return listener_.address; }
  // Keeps what initiators send on connections from..to.
  void hold(std::size_t from, std::size_t to) {
    from_ = from;
    to_ = to;
  }
  void release() { to_ = 0; }
  std::size_t kept() const { return kept_; }
  std::size_t connections() const { return connections_; }

 private:
  struct Connection {
    net::Descriptor initiator;
    net::Descriptor target;
    std::vector<char> kept;
  };

  static void move(int from, int to) {
    static thread_local std::array<char, 65536> buffer;
    const ssize_t n = recv(from, buffer.data(), buffer.size(), MSG_DONTWAIT);
    for (ssize_t done = 0; done < n;) {
      const ssize_t step =
          send(to, buffer.data() + done, static_cast<std::size_t>(n - done), MSG_NOSIGNAL);
      if (step < 0 && errno != EAGAIN) return;
      if (step > 0) done += step;
    }
  }

  void run() {
    std::vector<Connection> all;
    while (!stop_) {
      std::vector<pollfd> polled{{listener_.socket.get(), POLLIN, 0}};
      for (const Connection& one : all) {
        polled.push_back({one.initiator.get(), POLLIN, 0});
        polled.push_back({one.target.get(), POLLIN, 0});
      }
      poll(polled.data(), polled.size(), 2);
      std::size_t kept = 0;
      for (std::size_t i = 0; i < all.size(); ++i) {
        Connection& one = all[i];
        move(one.target.get(), one.initiator.get());
        if (i >= from_ && i < to_) {
          const std::size_t before = one.kept.size();
          one.kept.resize(before + 65536);
          const ssize_t n =
              recv(one.initiator.get(), one.kept.data() + before, 65536, MSG_DONTWAIT);
          one.kept.resize(before + static_cast<std::size_t>(std::max<ssize_t>(n, 0)));
        } else {
          for (std::size_t at = 0; at < one.kept.size();) {
            const ssize_t n = send(one.target.get(), one.kept.data() + at, one.kept.size() - at,
                                   MSG_NOSIGNAL | MSG_DONTWAIT);
            if (n < 0 && errno != EAGAIN) break;
            if (n > 0) at += static_cast<std::size_t>(n);
          }
          one.kept.clear();
          move(one.initiator.get(), one.target.get());
        }
        kept += one.kept.size();
      }
      kept_ = kept;
      bool exhausted = false;
      net::Descriptor socket = net::accept_from(listener_.socket, exhausted);
      if (!socket.valid()) continue;
      all.push_back({std::move(socket), net::connect_to(target_, Clock::now() + 5s, [] {}), {}});
      connections_ = all.size();
    }
  }

  const std::string target_;
  net::Listener listener_;
  std::atomic<bool> stop_{false};
  std::atomic<std::size_t> from_{0};
  std::atomic<std::size_t> to_{0};
  std::atomic<std::size_t> kept_{0};
  std::atomic<std::size_t> connections_{0};
  std::thread thread_;
};

template <typename Condition>
void wait_until(Clock::duration at_most, Condition&& condition) {
  const Clock::time_point end = Clock::now() + at_most;
  while (!condition()) {
    CHECK(Clock::now() < end);
    std::this_thread::sleep_for(1ms);
  }
}

struct Case {
  Case() {
    peer = initiator.connect(relay.address(), 5, [] {});
    wait_until(5s, [&] { return relay.connections() >= 2; });
    remote = peer->segment("sink", 5, [] {});
  }

  std::shared_ptr<Batch> write(int value, double deadline_s) {
    std::memset(local->base, value, kSize);
    return submit(initiator, Op::kWrite, local, remote, {{0, 0, kSize}}, deadline_s);
  }
  void check_sink(int value) const {
    for (uint64_t i = 0; i < kSize; ++i) CHECK(sink->base[i] == static_cast<std::byte>(value));
  }

  Engine target{{"127.0.0.1:0", kToken, 20, {"tcp"}}};
  Engine initiator{{"127.0.0.1:0", kToken, 20, {"tcp"}}};
  Relay relay{target};
  std::shared_ptr<Segment> sink = allocate(target, kSize, Access::kWrite, "sink");
  std::shared_ptr<Segment> local = allocate(initiator, kSize, Access::kNone, "local");
  std::shared_ptr<Peer> peer;
  std::shared_ptr<RemoteSegment> remote;
};

void finish(const std::shared_ptr<Batch>& batch) {
  CHECK(batch->wait(Clock::now() + 20s) && batch->state() == State::kDone);
}

// Nothing gets through any more: the lease alone settles the write.
void test_the_end_of_the_lease() {
  Case c;
  finish(c.write(1, 20));
  c.check_sink(1);
  c.relay.hold(0, 100);
  const auto batch = c.write(2, 0.3);
  CHECK(batch->wait(Clock::now() + 10s) && batch->state() == State::kTimedOut);
  CHECK(!batch->settled() && c.relay.kept() > 0);
  const Clock::time_point given_up = Clock::now();
  wait_until(10s, [&] { return batch->settled(); });
  CHECK(Clock::now() - given_up < 3s);
  CHECK(c.peer->alive());
  std::memset(c.sink->base, 3, kSize);
  c.relay.release();
  wait_until(10s, [&] { return c.relay.kept() == 0; });
  std::this_thread::sleep_for(300ms);
  c.check_sink(3);
  // By then there are lanes again.
  finish(c.write(4, 20));
  c.check_sink(4);
}

// What takes longer than a lease is renewed meanwhile.
void test_renewal() {
  Case c;
  finish(c.write(1, 20));
  c.relay.hold(1, 2);
  const auto batch = c.write(2, 20);
  wait_until(5s, [&] { return c.relay.kept() > 0; });
  CHECK(!batch->wait(Clock::now() + 3500ms));
  CHECK(c.relay.connections() == 2);  // nor was the lane given up
  c.relay.release();
  finish(batch);
  c.check_sink(2);
}

// One lane hangs, and its target can be asked over the other one.
void test_another_lane_takes_over() {
  Case c;
  finish(c.write(1, 20));
  c.relay.hold(1, 2);
  const auto batch = c.write(2, 0.3);
  CHECK(batch->wait(Clock::now() + 10s) && batch->state() == State::kTimedOut);
  wait_until(10s, [&] { return batch->settled(); });
  finish(c.write(3, 20));
  c.relay.release();
  std::this_thread::sleep_for(300ms);
  c.check_sink(3);
}

}  // namespace

int main() {
  test_the_end_of_the_lease();
  test_renewal();
  test_another_lane_takes_over();
}
