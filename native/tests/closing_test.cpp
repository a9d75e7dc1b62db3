// Calls of every kind in several threads while another one closes the engine: each ends soon, with
// kEngineClosed or an end that it may have anyway, and nothing is touched that is gone. What
// callers keep is let go of in every order.
#include <fcntl.h>

#include <array>
#include <atomic>
#include <cstring>
#include <functional>
#include <random>
#include <thread>

#include "../core/errors.h"
#include "check.h"
#include "child.h"
#include "engines.h"

using namespace inlay;
using namespace inlay::transfer;
using namespace engine_test;

namespace {

constexpr uint64_t kSize = uint64_t{8} << 20;
constexpr uint64_t kSmall = uint64_t{32} << 10;
constexpr std::size_t kThreads = 6;
using Transports = std::vector<std::string>;

EngineOptions options(const Transports& transports) {
  return {.listen = "127.0.0.1:0", .token = kToken, .transports = transports};
}

bool may_end_with(Status status) {
  return status == Status::kEngineClosed || status == Status::kSegmentClosed ||
         status == Status::kPeerDied || status == Status::kPeerUnreachable ||
         status == Status::kTimeout || status == Status::kCancelled;
}

// What one thread keeps on doing; false: the engine is closed.
class Caller {
 public:
  Caller(std::shared_ptr<Engine> engine, const std::string& address, int number)
      : engine_(std::move(engine)),
        address_(address),
        random_(static_cast<unsigned>(number)),
        there_(static_cast<uint64_t>(number) * kSize) {
    peer_ = engine_->connect(address_, 10, [] {});
    remote_ = peer_->segment("kv", 10, [] {});
    local_ = allocate(*engine_, kSize, Access::kNone, "local-" + std::to_string(number));
  }

  void run(const std::function<void(Caller&)>& call) {
    try {
      for (;;) call(*this);
    } catch (const TransferFailure& failure) {
      if (may_end_with(failure.status)) return;
      std::fprintf(stderr, "%s (%d)\n", failure.what(), static_cast<int>(failure.status));
      CHECK(false);
    }
  }

  void move(Op op, uint64_t bytes, uint64_t piece) {
    std::vector<Range> ranges;
    for (uint64_t at = 0; at < bytes; at += piece) ranges.push_back({at, there_ + at, piece});
    finish(engine_test::submit(*engine_, op, local_, remote_, std::move(ranges)));
  }
  void small() { move(random_() % 2 == 0 ? Op::kRead : Op::kWrite, kSmall, kSmall); }
  void large() { move(random_() % 2 == 0 ? Op::kRead : Op::kWrite, kSize, kSize); }
  void many() { move(random_() % 2 == 0 ? Op::kRead : Op::kWrite, kSize / 2, 4096); }
  void notified() {
    std::vector<Request> requests;
    requests.push_back({Op::kWrite, local_, remote_, {{0, there_, kSmall}}});
    finish(engine_->submit(std::move(requests), 20, Bytes(10)));
  }
  void cancelled() {
    const auto batch =
        engine_test::submit(*engine_, Op::kWrite, local_, remote_, {{0, there_, kSize}});
    engine_->cancel(*batch, std::chrono::milliseconds(50));
    CHECK(batch->wait(in(20)));
  }
  void dropped() {
    if (!std::exchange(has_dropped_, true))
      engine_test::submit(*engine_, Op::kRead, local_, remote_, {{0, there_, kSize}});
    (void)engine_->paths();
  }
  void send() {
    engine_->messenger().send(peer_, "topic", Bytes(100), 5, [] {});
  }
  void receive() {
    Message message;
    (void)engine_->arrivals().receive(message, in(0.01));
  }
  void look_up() {
    peer_ = engine_->connect(address_, 5, [] {});
    remote_ = peer_->segment("kv", 5, [] {});
    (void)engine_->paths();
  }
  void add() {
    const auto segment = allocate(*engine_, 4096, Access::kRead, engine_->free_name());
    CHECK(engine_->remove(segment, random_() % 2 == 0, in(20)));
  }
  // In any order.
  void let_go() {
    std::array<std::function<void()>, 4> all{[&] { engine_ = nullptr; }, [&] { peer_ = nullptr; },
                                             [&] { remote_ = nullptr; }, [&] { local_ = nullptr; }};
    std::ranges::shuffle(all, random_);
    for (const auto& one : all) one();
  }

 private:
  static void finish(const std::shared_ptr<Batch>& batch) {
    CHECK(batch->wait(in(20)));
    if (batch->state() != State::kDone) throw batch->failure();
  }

  std::shared_ptr<Engine> engine_;
  const std::string& address_;
  std::mt19937 random_;
  std::shared_ptr<Peer> peer_;
  std::shared_ptr<RemoteSegment> remote_;
  std::shared_ptr<Segment> local_;
  const uint64_t there_;  // its part of the segment
  bool has_dropped_ = false;
};

void test_closing(const std::string& address, const Transports& transports, int round) {
  constexpr std::array kCalls{
      &Caller::small,   &Caller::large, &Caller::many,    &Caller::notified, &Caller::cancelled,
      &Caller::dropped, &Caller::send,  &Caller::receive, &Caller::look_up,  &Caller::add};
  auto engine = std::make_shared<Engine>(options(transports));
  std::mt19937 random(static_cast<unsigned>(round));
  std::vector<std::thread> threads;
  std::atomic<std::size_t> ready{0};
  for (std::size_t i = 0; i < kThreads; ++i) {
    const auto call = kCalls[random() % kCalls.size()];
    threads.emplace_back([&, call, i, engine] {
      Caller caller(engine, address, static_cast<int>(i));
      ++ready;
      caller.run(call);
      caller.let_go();
    });
  }
  while (ready.load() < kThreads) std::this_thread::yield();
  std::this_thread::sleep_for(std::chrono::microseconds(random() % 5000));
  const bool two = random() % 2 == 0;
  std::thread other([&, engine] {
    if (two) engine->close();
  });
  engine->close();
  engine = nullptr;
  other.join();
  for (std::thread& thread : threads) thread.join();
}

void offer(Engine& engine) { allocate(engine, kThreads * kSize, Access::kWrite, "kv"); }

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 30;
  // Before there are threads.
  std::array<int, 2> ends;
  CHECK(pipe(ends.data()) == 0);
  Child child([&](Child& self) {
    alarm(600);
    Engine engine(options({"shm", "tcp"}));
    offer(engine);
    const std::string& address = engine.address();
    CHECK(write(ends[1], address.data(), address.size()) == static_cast<ssize_t>(address.size()));
    self.tell();
    self.hear();
  });
  child.hear();
  std::array<char, 100> text{};
  CHECK(read(ends[0], text.data(), text.size() - 1) > 0);
  const std::string other(text.data());
  Engine here(options({"local", "tcp"}));
  offer(here);
  for (int round = 0; round < rounds; ++round) {
    test_closing(here.address(), {"tcp"}, round);
    test_closing(here.address(), {"local"}, round);
    test_closing(other, {"shm"}, round);
    test_closing(other, {"shm", "tcp"}, round);
  }
  return 0;
}
