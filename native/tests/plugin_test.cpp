// What engines make of plugins: one that moves bytes in threads of its own, and misbehaves.
#include <dlfcn.h>

#include <cstring>

#include "check.h"
#include "engines.h"

namespace {

using namespace inlay;
using namespace inlay::transfer;
using namespace engine_test;

constexpr uint64_t kSize = 4 << 20;

// As in odd_plugin.c.
enum Manner : int {
  kGood,
  kTellsTwice,
  kDoneAndTold,
  kRefusedAndTold,
  kUnknownCode,
  kLostInPost,
  kPromisesNothing
};

void behave(Manner manner, int times) {
  void* const library = dlopen(INLAY_ODD_PLUGIN, RTLD_NOW);
  CHECK(library != nullptr);
  __atomic_store_n(static_cast<int*>(dlsym(library, "odd_times")), times, __ATOMIC_SEQ_CST);
  __atomic_store_n(static_cast<int*>(dlsym(library, "odd_manner")), manner, __ATOMIC_SEQ_CST);
}

EngineOptions options() {
  return {.listen = "127.0.0.1:0",
          .token = kToken,
          .transports = {"odd"},
          .plugins = {{"odd", INLAY_ODD_PLUGIN}}};
}

struct Pair {
  Pair() {
    for (const auto& [engine, name] : {std::pair{&target, "far"}, std::pair{&initiator, "near"}}) {
      (engine == &target ? theirs : ours) = allocate(*engine, kSize, Access::kWrite, name);
    }
    for (uint64_t i = 0; i < kSize; ++i) theirs->base[i] = std::byte(i * 7 + (i >> 12));
    peer = initiator.connect(target.address(), 5, [] {});
    remote = peer->segment("far", 5, [] {});
  }
  std::shared_ptr<Batch> read() {
    std::memset(ours->base, 0, kSize);
    std::vector<Request> requests;
    requests.push_back(
        {Op::kRead, ours, remote, {{0, 0, kSize / 2}, {kSize / 2, kSize / 2, kSize / 2}}});
    return initiator.submit(std::move(requests), 20);
  }
  void check_read() {
    const auto batch = read();
    CHECK(batch->wait(in(10)));
    CHECK(batch->state() == State::kDone && batch->settled());
    CHECK(std::memcmp(ours->base, theirs->base, kSize) == 0);
  }

  Engine target{options()};
  Engine initiator{options()};
  std::shared_ptr<Segment> theirs, ours;
  std::shared_ptr<Peer> peer;
  std::shared_ptr<RemoteSegment> remote;
};

void test_manners() {
  for (const Manner manner :
       {kGood, kTellsTwice, kDoneAndTold, kRefusedAndTold, kUnknownCode, kLostInPost, kGood}) {
    for (const int times : {1, manner == kTellsTwice || manner == kDoneAndTold ? 1000000 : 3}) {
      Pair pair;
      behave(manner, times);
      pair.check_read();
      pair.check_read();
      behave(kGood, 0);
      CHECK(pair.peer->alive());
    }
  }
}

// A path that promises no figure reaches nothing.
void test_promises() {
  Pair pair;
  behave(kPromisesNothing, 1000000);
  const auto batch = pair.read();
  CHECK(batch->wait(in(10)));
  CHECK(batch->state() == State::kFailed &&
        batch->failure().status == Status::kTransportUnavailable);
  behave(kGood, 0);
  pair.check_read();
}

// Cancelled and closed while its threads tell.
void test_ends() {
  Pair pair;
  for (int i = 0; i < 100; ++i) {
    const auto batch = pair.read();
    if (i % 3 == 0) (void)batch->wait(Clock::now() + std::chrono::microseconds(i * 20));
    batch->stop(Status::kCancelled, std::chrono::seconds(1));
    CHECK(batch->wait(in(10)));
    CHECK(batch->settled());
    std::memset(pair.ours->base, 1, kSize);
    for (uint64_t at = 0; at < kSize; at += 4096) CHECK(pair.ours->base[at] == std::byte{1});
  }
  pair.check_read();
  for (int i = 0; i < 20; ++i) {
    Pair closed;
    const auto batch = closed.read();
    if (i % 2 == 0) closed.target.close();
    (void)closed.initiator.close();
    CHECK(batch->over());
  }
}

}  // namespace

int main() {
  test_manners();
  test_promises();
  test_ends();
}
