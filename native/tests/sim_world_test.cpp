// The simulated world, for builds with sanitizers; Python's tests compare more.
#include <algorithm>
#include <cmath>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "../sim/links.h"
#include "../sim/world.h"
#include "check.h"

using inlay::cluster::Chain;
using inlay::cluster::Column;
using inlay::cluster::Digest;
using inlay::cluster::PrefixIndex;
using inlay::cluster::State;
using inlay::cluster::Timing;
using inlay::sim::InstanceConfig;
using inlay::sim::Links;
using inlay::sim::LostRequest;
using inlay::sim::News;
using inlay::sim::Outcome;
using inlay::sim::StepTime;
using inlay::sim::TierConfig;
using inlay::sim::TiersConfig;
using inlay::sim::World;
using inlay::sim::WriteWhen;

namespace {

// 10 ms, and 10 us a token of a prompt.
StepTime step_time() { return StepTime({{{0.01, 1e-5, 0, 0.01, 1e-4, 1e-8, 0, 0}}}); }

InstanceConfig config(uint32_t num_pages, const TiersConfig& tiers = {}) {
  return {num_pages, 16, {256, 8, 64}, step_time(), 0.0, 0, 0, 1000.0, 4, 1e6, 1e6, tiers};
}

// A small host, a slow disk, and blocks that are copied in one of three ways; with even seeds a
// store, with some others nothing.
TiersConfig tiers_of(uint64_t seed) {
  if (seed % 4 == 1) return {};
  return {{40, 1e7, 1e7, 1e-4, "cost"},
          {100, 1e6, 1e6, 1e-3, "lru", false},
          static_cast<WriteWhen>(seed % 3)};
}

TierConfig store_of(uint64_t seed) {
  if (seed % 2 == 1) return {};
  return {200, 5e6, 5e6, 1e-3, "s3fifo"};
}

struct Drawn {
  double arrival_s = 0.0;
  uint32_t prompt = 0;
  uint32_t output = 0;
  std::size_t slot = 0;
  std::vector<Digest> blocks;
};

Chain chain_of(const std::vector<Digest>& blocks) {
  return Chain({reinterpret_cast<const uint8_t*>(blocks.data()), blocks.size() * sizeof(Digest)});
}

// Requests of a few families with common beginnings, on three instances that all have too few
// pages; some of them are divided, copied, taken back, or lost, to go on elsewhere.
void check_drawn(uint64_t seed) {
  std::mt19937_64 random(seed);
  World world({seed, 0.002, 0.02, 0.001, 1.0, 5.0, 2.0, true, store_of(seed)});
  PrefixIndex index(seed, 1);
  for (int i = 0; i < 3; ++i) {
    CHECK(world.add(config(60, tiers_of(seed))) == index.add());
  }
  std::multiset<uint64_t> firsts;
  std::multiset<uint64_t> ends;
  std::vector<Outcome> outcomes;
  const auto hear = [&] {
    for (const News& news : world.take_news()) {
      if (news.kind == News::kFirst) firsts.insert(news.request);
      if (news.kind == News::kFinished) ends.insert(news.request);
    }
    for (const Outcome& outcome : world.take_outcomes()) outcomes.push_back(outcome);
  };
  double now_s = 0.0;
  const uint64_t requests = 200;
  std::vector<Drawn> drawn(requests);
  const auto go_on = [&](uint64_t request, uint32_t produced) {
    Drawn& one = drawn[request];
    one.slot = random() % 3;
    world.submit({request, one.arrival_s, 0, one.prompt + produced, one.output - produced,
                  chain_of(one.blocks)},
                 one.slot, one.slot);
  };
  for (uint64_t request = 0; request < requests; ++request) {
    now_s += static_cast<double>(random() % 4) * 0.03;
    while (!world.advance(now_s, &index)) hear();
    hear();
    const auto prompt = static_cast<uint32_t>(1 + random() % 400);
    const auto output = static_cast<uint32_t>(1 + random() % 100);
    std::vector<Digest>& blocks = drawn[request].blocks;
    const uint64_t family = random() % 5;
    const uint64_t left = random() % 20;
    for (uint64_t i = 0; i < prompt / 16; ++i)
      blocks.push_back({(i < left ? 0 : request + 1) << 32 | family << 16 | i, 0});
    std::vector<int32_t> lengths(3);
    const Chain chain = chain_of(blocks);
    index.match(chain, lengths);
    const std::size_t prefill = random() % 3;
    const std::size_t decode = random() % 2 == 0 ? prefill : random() % 3;
    world.submit({request, now_s, static_cast<int32_t>(random() % 3) - 1, prompt, output, chain},
                 prefill, decode);
    drawn[request] = {now_s, prompt, output, decode, std::move(blocks)};
    if (chain.size() != 0 && random() % 4 == 0) world.copy(chain, decode, (decode + 1) % 3);
    // Some go on elsewhere, behind the output that they have.
    const uint64_t moved = request - random() % std::min<uint64_t>(request + 1, 4);
    if (const auto produced = world.take_back(moved, drawn[moved].slot)) go_on(moved, *produced);
    if (random() % 30 == 0) {
      const std::size_t slot = random() % 3;
      const std::vector<LostRequest> lost = world.lose(slot);
      world.come_back(slot);
      for (const LostRequest& one : lost) go_on(one.request, one.produced);
    }
    world.audit();
  }
  while (!world.advance(INFINITY, &index)) hear();
  hear();
  world.audit();
  CHECK(world.num_live() == 0 && outcomes.size() == requests);
  CHECK(ends.size() == requests);
  for (const Outcome& outcome : outcomes) {
    CHECK(firsts.count(outcome.request) >= 1 && ends.count(outcome.request) == 1);
    CHECK(outcome.arrival_s < outcome.first_s && outcome.first_s <= outcome.end_s);
    CHECK(outcome.tbt_s <= outcome.longest_gap_s);
  }
}

// A state takes over all that is heard of requests that are neither divided nor copied.
void check_state() {
  constexpr std::size_t slots = 2;
  World world({1, 0.002, 0.02, 0.0, 1.0, 5.0, 2.0, true});
  Timing timing({1e-2, 1e-4, 1e-9, 1e-2, 1e-4, 1e-8}, {2000.0, 2.5, 0.05});
  std::vector<double> numbers(static_cast<std::size_t>(Column::kCount) * slots);
  State state(16, 0);
  state.bind(numbers.data(), slots);
  for (std::size_t slot = 0; slot < slots; ++slot) {
    CHECK(world.add(config(60)) == slot);
    state.join(slot, timing, 512);
  }
  std::vector<uint64_t> finished;
  const auto hear = [&] {
    CHECK(world.take_news(&state).empty());
    for (const uint64_t request : world.take_finished()) finished.push_back(request);
  };
  for (uint64_t request = 0; request < 40; ++request) {
    const double now_s = static_cast<double>(request) * 0.03;
    CHECK(world.advance(now_s, nullptr));
    hear();
    const std::size_t slot = request % slots;
    state.dispatched(std::to_string(request), {slot, slot, inlay::cluster::kNormal, 100, 20},
                     now_s);
    world.submit({request, now_s, 0, 100, 20, chain_of({})}, slot, slot);
    CHECK(state.live().size() == request + 1 - finished.size());
  }
  CHECK(world.advance(INFINITY, nullptr));
  hear();
  CHECK(finished.size() == 40 && state.live().empty() && timing.num_steps() > 40);
}

// Two senders to one receiver and one of them to another: 10 in, of which 4 can leave the second.
void check_fair_shares() {
  Links links;
  links.add_end(100, 100);
  links.add_end(8, 100);
  links.add_end(100, 10);
  links.add_end(100, 100);
  const Links::Flow first = links.open(0, 2);
  const Links::Flow second = links.open(1, 2);
  const Links::Flow third = links.open(1, 3);
  links.put(first, 60);
  links.put(second, 40);
  links.put(third, 40);
  CHECK(links.next_s() == 10.0);  // at 6, 4 and 4 a second
  links.advance(10.0);
  CHECK(links.take_drained().size() == 3);
  links.put(third, 16);
  links.produce(third, 2.0);
  CHECK(links.next_s() > 12.6 && links.next_s() < 12.7);  // 16 at 8 less 2 a second
  links.advance(links.next_s());
  CHECK(links.take_drained().size() == 1 && std::isinf(links.next_s()));
  links.advance(20.0);
  CHECK(links.empty(third) && std::abs(links.sent_bytes(1) - 40 - 40 - 16 - 20) < 1e-6);
}

}  // namespace

int main() {
  for (uint64_t seed = 0; seed < 20; ++seed) check_drawn(seed);
  check_state();
  check_fair_shares();
  return 0;
}
