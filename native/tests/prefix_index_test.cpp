// The prefix index against sets, for builds with sanitizers; Python's tests compare more.
#include "../cluster/prefix_index.h"

#include <array>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "../core/errors.h"
#include "check.h"

using inlay::cluster::Chain;
using inlay::cluster::Digest;
using inlay::cluster::PrefixIndex;

namespace {

using Blocks = std::vector<Digest>;

Chain chain_of(const Blocks& blocks) {
  return Chain({reinterpret_cast<const uint8_t*>(blocks.data()), blocks.size() * sizeof(Digest)});
}

// Chains of a tree: one of four beginnings, left somewhere for one of twenty ends. A block says
// where it was left, so that it determines those before it.
Blocks draw_chain(std::mt19937_64& random) {
  Blocks blocks;
  const uint64_t beginning = random() % 4;
  const uint64_t left = random() % 100;
  for (uint64_t i = 0; i < left; ++i) blocks.push_back({beginning, i});
  const uint64_t end = 1 + random() % 20;
  for (uint64_t i = random() % 100; i > 0; --i)
    blocks.push_back({end << 32 | left << 8 | beginning, blocks.size()});
  return blocks;
}

struct Model {
  std::map<std::size_t, std::set<std::pair<uint64_t, uint64_t>>> known;

  std::size_t leading(std::size_t slot, const Blocks& blocks) const {
    const auto& there = known.at(slot);
    std::size_t length = 0;
    while (length < blocks.size() && there.contains({blocks[length].low, blocks[length].high}))
      ++length;
    return length;
  }
};

// Whole chains come, so that no block is without its parents.
void check_against_sets(uint64_t seed, std::size_t num_slots) {
  std::mt19937_64 random(seed);
  PrefixIndex index(seed, 7);
  Model model;
  for (std::size_t slot = 0; slot < num_slots; ++slot) {
    CHECK(index.add() == slot);
    model.known[slot];
  }
  for (int step = 0; step < 300; ++step) {
    const std::size_t slot = random() % num_slots;
    const Blocks blocks = draw_chain(random);
    auto& there = model.known[slot];
    switch (random() % 8) {
      case 0:
        index.load(slot, chain_of(blocks));
        there.clear();
        for (const Digest& block : blocks) there.insert({block.low, block.high});
        break;
      case 1:
        if (random() % 8 == 0) {
          index.remove(slot);
          CHECK(index.add() == slot);
          there.clear();
        }
        break;
      default:
        index.apply(slot, true, chain_of(blocks));
        for (const Digest& block : blocks) there.insert({block.low, block.high});
    }
    CHECK(index.num_blocks(slot) == there.size());
    const Blocks asked = draw_chain(random);
    std::vector<int32_t> lengths(num_slots, -1);
    index.match(chain_of(asked), lengths);
    for (std::size_t i = 0; i < num_slots; ++i)
      CHECK(static_cast<std::size_t>(lengths[i]) == model.leading(i, asked));
  }
  for (std::size_t slot = 0; slot < num_slots; ++slot) index.remove(slot);
  CHECK(index.size() == 0 && index.num_slots() == 0);
}

void check_expected() {
  std::mt19937_64 random(3);
  PrefixIndex index(1, 2);
  const std::size_t slot = index.add();
  Blocks blocks;
  for (uint64_t i = 0; i < 50; ++i) blocks.push_back({i, random()});
  std::array<int32_t, 1> lengths{};
  const auto leading = [&] {
    index.match(chain_of(blocks), lengths);
    return lengths[0];
  };
  index.load(slot, chain_of(blocks).first(20));
  index.expect(slot, chain_of(blocks));
  CHECK(leading() == 50 && index.num_expected() == 30);
  index.turn();
  CHECK(leading() == 50 && index.num_expected() == 0);
  index.turn();
  CHECK(leading() == 20);
}

void check_slots() {
  PrefixIndex index(1, 2);
  for (std::size_t slot = 0; slot < inlay::cluster::kMaxSlots; ++slot) CHECK(index.add() == slot);
  bool refused = false;
  try {
    index.add();
  } catch (const inlay::ResourceError&) {
    refused = true;
  }
  CHECK(refused);
  // As many lengths as slots: all ranges are in use.
  Blocks blocks;
  for (uint64_t i = 0; i < inlay::cluster::kMaxSlots; ++i) blocks.push_back({i, ~i});
  for (std::size_t slot = 0; slot < index.num_slots(); ++slot)
    index.load(slot, chain_of(blocks).first((slot * 37) % 256));
  std::vector<int32_t> lengths(index.num_slots());
  index.match(chain_of(blocks), lengths);
  for (std::size_t slot = 0; slot < lengths.size(); ++slot)
    CHECK(static_cast<std::size_t>(lengths[slot]) == (slot * 37) % 256);
}

}  // namespace

int main() {
  for (uint64_t seed = 0; seed < 2; ++seed) {
    check_against_sets(seed, 3);
    check_against_sets(seed, 70);
  }
  check_expected();
  check_slots();
}
