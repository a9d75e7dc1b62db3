// Which instance has which leading blocks of a prompt. The contract is
// src/inlay/cluster/prefix_index.py; one thread at a time.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "digest.h"
#include "holder_table.h"

namespace inlay::cluster {

class PrefixIndex {
 public:
  PrefixIndex(uint64_t seed0, uint64_t seed1);

  // The lowest free slot. Throws ResourceError at kMaxSlots.
  std::size_t add();
  void remove(std::size_t slot);
  // One more than the highest slot in use.
  std::size_t num_slots() const { return in_use_.size(); }

  // The slot is in use in these, or ArgumentError is thrown.
  void apply(std::size_t slot, bool stored, Chain blocks);
  void load(std::size_t slot, Chain blocks);
  void expect(std::size_t slot, Chain blocks);
  std::size_t num_blocks(std::size_t slot) const;

  // What was expected before the last turn is forgotten.
  void turn();

  // Of each slot the leading blocks of the chain that it has or is expected to have; `lengths` has
  // num_slots(). Cost: about log2(blocks) searches for each length that occurs, and those of
  // different lengths wait for memory together.
  void match(Chain chain, std::span<int32_t> lengths);

  std::size_t size() const { return known_.size(); }
  std::size_t num_expected() const { return young_.size(); }
  std::size_t memory_bytes() const;

 private:
  // Slots of which the last block that they have is known to be the one numbered `found` (from 1)
  // or later, but before `beyond`. Their bits lie in `sets_`.
  struct Range {
    std::size_t found;
    std::size_t beyond;
    std::size_t middle() const { return (found + beyond) / 2; }
  };

  void require(std::size_t slot) const;
  void holders(Digest digest, std::span<uint64_t> words) const;
  std::size_t known_prefix(std::size_t slot, Chain chain) const;
  std::span<uint64_t> set_of(std::size_t number);
  void finish(std::span<const uint64_t> slots, std::size_t length, std::span<int32_t> lengths);

  HolderTable known_;
  HolderTable young_;  // expected since the last turn
  HolderTable old_;    // and before it
  std::vector<bool> in_use_;
  std::size_t words_ = 0;
  // Of match(): ranges with slots in them, each slot in one at most.
  std::vector<Range> ranges_;
  std::vector<uint64_t> sets_;
  std::vector<uint64_t> here_;
};

}  // namespace inlay::cluster
