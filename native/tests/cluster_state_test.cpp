// The cluster state in drawn histories, for builds with sanitizers; Python's tests compare it with
// the reference.
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "../cluster/choice.h"
#include "../cluster/seen_prompts.h"
#include "../cluster/state.h"
#include "../core/errors.h"
#include "check.h"

using namespace inlay::cluster;

namespace {

constexpr std::size_t kSlots = 5;
constexpr auto kRowsOfNumbers = static_cast<std::size_t>(Column::kCount);

struct Cluster {
  Timing timing{{0.01, 1e-4, 2e-9, 0.01, 2e-4, 1e-7}, {2000.0, 2.5, 0.05}};
  std::vector<double> numbers = std::vector<double>(kRowsOfNumbers * kSlots);
  State state{16, 1 << 16};

  Cluster() {
    state.bind(numbers.data(), kSlots);
    for (std::size_t slot = 0; slot < kSlots; ++slot) join(slot);
  }
  double& at(Column column, std::size_t slot) {
    return numbers[static_cast<std::size_t>(column) * kSlots + slot];
  }
  void join(std::size_t slot) {
    for (std::size_t row = 0; row < kRowsOfNumbers; ++row) numbers[row * kSlots + slot] = 0.0;
    at(Column::kChunk, slot) = 512;
    at(Column::kMaxRows, slot) = 8;
    at(Column::kPagesFree, slot) = 300;
    at(Column::kLinkBandwidth, slot) = 1e8;
    // The first one only computes prompts.
    at(Column::kClosedDecode, slot) = slot == 0 ? std::numeric_limits<double>::infinity() : 0.0;
    state.join(slot, timing, 512);
  }
};

template <typename Do>
bool refused(Do work) {
  try {
    work();
  } catch (const inlay::ArgumentError&) {
    return true;
  }
  return false;
}

void check_choices(const Cluster& cluster, std::mt19937_64& random, double now_s) {
  std::vector<int32_t> matches;
  for (std::size_t slot = random() % (kSlots + 2); slot > 0; --slot)
    matches.push_back(static_cast<int32_t>(random() % 300));
  Request request;
  request.num_tokens = static_cast<int64_t>(1 + random() % 5000);
  request.max_output_tokens = 100;
  request.level = random() % kLevels;
  request.store_blocks = static_cast<int64_t>(random() % 2 * 200);
  request.gap_s = 0.1;
  request.matches = matches;
  Columns columns(9, kSlots);
  const State& state = cluster.state;
  for (const Choice& choice :
       {choose_lowest(state, request, now_s, columns),
        choose_least_loaded(state, request, now_s, columns),
        choose_local_cache_aware(state, request, now_s, columns),
        choose_kv_centric(state, request, now_s, true, 4.0, columns),
        choose_inlay(state, request, now_s, {1.0, 0.05, 10.0, 3.0, 0.1}, columns)}) {
    CHECK(choice.prefill < kSlots && choice.decode < kSlots && choice.decode != 0);
    CHECK(choice.ttft_s >= choice.wait_s && choice.wait_s >= 0 && choice.work_s > 0);
    CHECK(choice.reused_blocks <= (request.num_tokens - 1) / 16);
  }
}

void check_drawn(uint64_t seed) {
  std::mt19937_64 random(seed);
  Cluster cluster;
  State& state = cluster.state;
  double now_s = 0.0;
  uint64_t sent = 0;
  for (int i = 0; i < 2000; ++i) {
    now_s += static_cast<double>(random() % 10) * 0.01;
    const std::string id = std::to_string(random() % (sent + 1));
    const std::size_t slot = random() % kSlots;
    switch (random() % 8) {
      case 0:
      case 1: {
        const std::size_t decode = random() % 2 ? slot : random() % kSlots;
        const auto tokens = static_cast<int64_t>(1 + random() % 3000);
        state.dispatched(
            std::to_string(sent++),
            {slot, decode, random() % kLevels, tokens, 100, tokens / 32, 0, 0.5, 0.01, 0.2}, now_s);
        break;
      }
      case 2:
      case 3:
        state.prefill_done(id, now_s);
        break;
      case 4: {
        const auto tokens = static_cast<int64_t>(random() % 200);
        state.finished(id, random() % 3 ? &tokens : nullptr);
        break;
      }
      case 5: {
        LoadNumbers load;
        load.waiting = static_cast<int64_t>(random() % 20);
        load.running = static_cast<int64_t>(random() % 8);
        load.prefill_tokens = static_cast<int64_t>(random() % 20'000);
        load.context_tokens = static_cast<int64_t>(random() % 20'000);
        load.pages_free = 200;
        const StepSample sample{random() % 500, random() % 90'000, 3, 2000, 0.02};
        state.report(slot, load, {&sample, random() % 2}, now_s);
        break;
      }
      case 6:
        state.sending(slot, 1e6);
        state.sent(slot, 1e6, static_cast<double>(random() % 3) - 1.0);
        break;
      default:
        if (random() % 10 == 0) {
          for (const std::string& lost : state.leave(slot)) CHECK(!lost.empty());
          CHECK(refused([&] { state.report(slot, {}, {}, now_s); }));
          cluster.join(slot);
        }
    }
    check_choices(cluster, random, now_s);
  }
  while (!state.live().empty()) state.finished(std::string(state.live().front()->id), nullptr);
  for (std::size_t slot = 0; slot < kSlots; ++slot) {
    CHECK(cluster.at(Column::kOwnRows, slot) == 0);
    CHECK(cluster.at(Column::kComingRows, slot) == 0);
    CHECK(std::abs(cluster.at(Column::kComingTokens, slot)) < 1e-3);
    CHECK(state.best_effort(slot).empty());
  }
}

void check_seen(uint64_t seed) {
  std::mt19937_64 random(seed);
  SeenPrompts seen(seed, 1, 3, 500);
  for (int i = 0; i < 300; ++i) {
    std::vector<Digest> blocks;
    for (uint64_t n = random() % 200; n > 0; --n) blocks.push_back({random() % 20, blocks.size()});
    const Chain chain(
        {reinterpret_cast<const uint8_t*>(blocks.data()), blocks.size() * sizeof(Digest)});
    seen.add(chain, random() % (blocks.size() + 1), i);
    CHECK(seen.ready_s(chain, blocks.size() + 3) == SeenPrompts::kNever_s);
    CHECK(seen.displaced() >= 0 && seen.displaced() <= 1);
  }
}

}  // namespace

int main() {
  for (uint64_t seed = 0; seed < 5; ++seed) check_drawn(seed);
  for (uint64_t seed = 0; seed < 5; ++seed) check_seen(seed);
  return 0;
}
