// Which slots have which blocks: a set of slots under each digest, in 32 to 48 bytes while a block
// is in at most four of them.
//
// The hash table is 256 small ones (open addressing, linear probing), chosen by the hash, each of
// which grows alone: no add waits for a million cells to move. A removal moves later cells back, so
// there are no tombstones. A cell names up to four slots; a block that more have is in a *crowd*, a
// bit for each slot.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "digest.h"

namespace inlay::cluster {

using Slot = uint16_t;
inline constexpr std::size_t kMaxSlots = 4096;

class HolderTable {
 public:
  // The seeds keep those who choose prompts from choosing what collides.
  HolderTable(uint64_t seed0, uint64_t seed1) : seed_{seed0, seed1} {}
  HolderTable(HolderTable&&) = default;
  HolderTable& operator=(HolderTable&&) = default;

  // Sets have so many words of 64 slots from now on; never fewer than before.
  void set_words(std::size_t words);

  // The slot is below 64 times the words. Again is as good as once.
  void add(Digest digest, Slot slot);
  void remove(Digest digest, Slot slot);
  // From all blocks. Cost: nothing if it has none, or a walk through the table.
  void remove_all(Slot slot);
  void clear();

  // Asks memory for where the digest is, or would be.
  void prefetch(Digest digest) const;
  bool holds(Digest digest, Slot slot) const;
  // Adds the bits of the slots that have the block.
  void add_holders(Digest digest, std::span<uint64_t> words) const;

  std::size_t size() const { return size_; }
  // Blocks that a slot has.
  std::size_t count(Slot slot) const { return counts_[slot]; }
  std::size_t memory_bytes() const;

 private:
  static constexpr Slot kNobody = 0xffff;
  static constexpr Slot kCrowd = 0xfffe;  // in the last lane: the first two are a crowd's number
  static constexpr std::size_t kLanes = 4;
  // A crowd that shrinks to so few goes back into its cell.
  static constexpr int kFew = 2;
  static constexpr std::size_t kLeastCells = 16;
  static constexpr unsigned kShardBits = 8;

  // Slots from the first lane on.
  struct Cell {
    Digest digest;
    std::array<Slot, kLanes> lanes{kNobody, kNobody, kNobody, kNobody};

    bool empty() const { return lanes[0] == kNobody && lanes[kLanes - 1] != kCrowd; }
    bool crowded() const { return lanes[kLanes - 1] == kCrowd; }
    std::size_t crowd() const { return lanes[0] | std::size_t{lanes[1]} << 16; }
    bool names(Slot slot) const {
      return lanes[0] == slot || lanes[1] == slot || lanes[2] == slot || lanes[3] == slot;
    }
  };
  struct Shard {
    std::unique_ptr<Cell[]> cells;
    uint32_t num_cells = 0;
    uint32_t used = 0;

    std::size_t home(uint64_t hash) const { return (hash & 0xffffffff) * num_cells >> 32; }
    std::size_t next(std::size_t at) const { return at + 1 == num_cells ? 0 : at + 1; }
    std::size_t distance(std::size_t from, std::size_t to) const {
      return to >= from ? to - from : to + num_cells - from;
    }
  };

  uint64_t hash(Digest digest) const;
  static std::size_t shard_of(uint64_t hash) { return hash >> (64 - kShardBits); }
  const Cell* find(Digest digest) const;
  void resize(Shard& shard, std::size_t num_cells);
  void shrink(Shard& shard);
  void erase(Shard& shard, std::size_t at);
  void put(Cell& cell, Slot slot);
  bool take(Cell& cell, Slot slot);
  bool has(const Cell& cell, Slot slot) const;
  uint64_t* crowd(const Cell& cell) { return &crowds_[cell.crowd() * words_]; }
  const uint64_t* crowd(const Cell& cell) const { return &crowds_[cell.crowd() * words_]; }
  void gather(Cell& cell);
  void disperse(Cell& cell);

  std::array<uint64_t, 2> seed_;
  std::size_t words_ = 0;
  std::size_t size_ = 0;
  std::vector<std::size_t> counts_;  // of each slot
  std::array<Shard, std::size_t{1} << kShardBits> shards_;
  std::vector<uint64_t> crowds_;  // words_ each
  std::vector<uint32_t> free_crowds_;
};

}  // namespace inlay::cluster
