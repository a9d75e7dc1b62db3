// Engines of one process: threads that read, write, cancel, deregister and close at once. Meant for
// the sanitizers, too.
#include <sys/resource.h>

#include <cstring>
#include <random>
#include <thread>

#include "check.h"
#include "engines.h"

namespace {

using namespace inlay;
using namespace inlay::transfer;
using namespace engine_test;

std::shared_ptr<Peer> connect(Engine& engine, const Engine& to) {
  return engine.connect(to.address(), 5, [] {});
}

std::byte pattern(uint64_t offset) { return std::byte((offset * 7 + (offset >> 8) * 13) & 0xff); }

void fill(Segment& segment) {
  for (uint64_t i = 0; i < segment.size; ++i) segment.base[i] = pattern(i);
}

void test_threads(const std::vector<std::string>& transports) {
  const bool verifies = transports[0] == "tcp";
  Engine target({"127.0.0.1:0", kToken, 20, transports});
  Engine initiator({"127.0.0.1:0", kToken, 20, transports});
  constexpr uint64_t kSize = 1 << 20;
  const auto source = allocate(target, kSize, Access::kRead, "source");
  fill(*source);
  const auto sink = allocate(target, 4 * kSize, Access::kWrite, "sink");
  const auto peer = connect(initiator, target);
  CHECK(connect(initiator, target) == peer);
  const auto remote_source = peer->segment("source", 5, [] {});
  const auto remote_sink = peer->segment("sink", 5, [] {});
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      std::mt19937_64 random(t);
      const auto local = allocate(initiator, kSize, Access::kNone, "local" + std::to_string(t));
      for (int i = 0; i < 60; ++i) {
        std::memset(local->base, 0, kSize);
        std::vector<Range> ranges;
        uint64_t at = 0;
        const uint64_t most = i % 3 == 0 ? 200000 : 500;
        while (ranges.size() < 400 && at < kSize) {
          const uint64_t length = std::min(1 + random() % most, kSize - at);
          ranges.push_back({at, random() % (kSize - length + 1), length});
          at += length + random() % 3;
        }
        const auto batch =
            submit(initiator, Op::kRead, local, remote_source, ranges, 20, verifies && i % 2 == 0);
        if (i % 5 == 0) batch->stop(Status::kCancelled, std::chrono::seconds(1));
        CHECK(batch->wait(in(20)));
        if (batch->state() == State::kDone)
          for (const Range& range : ranges)
            CHECK(std::memcmp(local->base + range.local, source->base + range.remote,
                              range.length) == 0);
        else
          CHECK(i % 5 == 0 && batch->state() == State::kCancelled && batch->settled());
        // Back into this thread's quarter of the sink.
        fill(*local);
        const auto back = submit(initiator, Op::kWrite, local, remote_sink,
                                 {{3, t * kSize, kSize - 3}}, 20, verifies && i % 2 == 0);
        if (i % 7 == 0) back->stop(Status::kCancelled, std::chrono::seconds(5));
        CHECK(back->wait(in(20)));
        CHECK(back->settled());
        if (back->state() == State::kDone)
          CHECK(std::memcmp(sink->base + t * kSize, local->base + 3, kSize - 3) == 0);
      }
      CHECK(initiator.remove(local, false, in(5)));
    });
  for (std::thread& thread : threads) thread.join();
}

void test_deregistration_under_load(const std::vector<std::string>& transports) {
  Engine target({"127.0.0.1:0", kToken, 20, transports});
  Engine initiator({"127.0.0.1:0", kToken, 20, transports});
  const auto local = allocate(initiator, 8 << 20, Access::kNone, "local");
  for (int round = 0; round < 20; ++round) {
    const auto segment = allocate(target, 8 << 20, Access::kWrite, "segment");
    const auto remote = connect(initiator, target)->segment("segment", 5, [] {});
    const Op op = round % 2 == 0 ? Op::kRead : Op::kWrite;
    const auto batch = submit(initiator, op, local, remote, {{0, 0, 8 << 20}});
    std::thread waiter([&] { CHECK(batch->wait(in(20))); });
    CHECK(target.remove(segment, round % 4 < 2, in(10)));
    const auto keeper = segment->take_keeper();
    if (op == Op::kWrite) {
      // Nothing lands any more: what is written here stays.
      std::memset(segment->base, 0x55, 8 << 20);
      waiter.join();
      for (uint64_t i = 0; i < 8 << 20; i += 4096) CHECK(segment->base[i] == std::byte{0x55});
    } else {
      waiter.join();
    }
    const State state = batch->state();
    CHECK(state == State::kDone || state == State::kFailed);
    if (state == State::kFailed) {
      const Status why = batch->failure().status;
      CHECK(why == Status::kSegmentClosed || why == Status::kPeerDied);
    }
    CHECK(!remote->closed || batch->state() == State::kFailed);
  }
}

void test_closing(const std::vector<std::string>& transports) {
  for (int round = 0; round < 10; ++round) {
    auto target = std::make_unique<Engine>(EngineOptions{"127.0.0.1:0", kToken, 20, transports});
    auto initiator = std::make_unique<Engine>(EngineOptions{"127.0.0.1:0", kToken, 20, transports});
    allocate(*target, 32 << 20, Access::kRead, "segment");
    const auto local = allocate(*initiator, 32 << 20, Access::kNone, "local");
    const auto remote = connect(*initiator, *target)->segment("segment", 5, [] {});
    const auto batch = submit(*initiator, Op::kRead, local, remote, {{0, 0, 32 << 20}});
    (round % 2 == 0 ? target : initiator)->close();
    CHECK(batch->wait(in(20)));
    if (batch->state() != State::kDone) {
      const Status why = batch->failure().status;
      // Within the process the target's memory is seen to go before its connection is.
      const bool gone =
          why == Status::kPeerDied || (transports[0] == "local" && why == Status::kSegmentClosed);
      CHECK(round % 2 == 0 ? gone : why == Status::kEngineClosed);
    }
  }
}

// Nobody waits: the loop's thread moves the bytes and sees the deadline.
void test_without_a_waiter(const std::vector<std::string>& transports) {
  Engine target({"127.0.0.1:0", kToken, 20, transports});
  Engine initiator({"127.0.0.1:0", kToken, 20, transports});
  const auto source = allocate(target, 16 << 20, Access::kRead, "source");
  fill(*source);
  const auto local = allocate(initiator, 16 << 20, Access::kNone, "local");
  const auto remote = connect(initiator, target)->segment("source", 5, [] {});
  const auto batch = submit(initiator, Op::kRead, local, remote, {{0, 0, 16 << 20}});
  const auto end = in(20);
  while (!batch->over()) CHECK(Clock::now() < end);
  CHECK(batch->state() == State::kDone);
  CHECK(std::memcmp(local->base, source->base, 16 << 20) == 0);
  // A thread that is held up after submit() finds the batch complete, so once in several tries.
  bool timed_out = false;
  for (int i = 0; i < 20 && !timed_out; ++i) {
    const auto late = submit(initiator, Op::kRead, local, remote, {{0, 0, 16 << 20}}, 1e-6);
    while (!late->over()) CHECK(Clock::now() < end);
    timed_out = late->state() == State::kTimedOut && late->settled();
    CHECK(timed_out || late->state() == State::kDone);
  }
  // Copies within the process may all be over before anybody looks.
  CHECK(timed_out || transports[0] == "local");
  // The lane goes on after answers that nobody wanted any more.
  const auto next = submit(initiator, Op::kRead, local, remote, {{0, 0, 16 << 20}});
  CHECK(next->wait(in(20)) && next->state() == State::kDone);
}

}  // namespace

int main() {
  for (const char* transport : {"tcp", "local"}) {
    test_threads({transport});
    test_deregistration_under_load({transport});
    test_closing({transport});
    test_without_a_waiter({transport});
  }
}
