// Which ranges of a segment are free. Knows offsets alone, never the segment's memory.
//
// A two-level segregated fit: free ranges are listed by size class, a bit says which classes have
// any, and what is freed joins its free neighbours at once. Classes are 1/32 wide. Before a larger
// range is cut, ranges of the size's own class are tried, the one freed longest ago first: objects
// have few sizes, so that holes are filled by what fits them exactly, and by trying the oldest the
// neighbours of others get time to become free.
//
// Source: Masmano et al., TLSF, ECRTS 2004; the search of the own class and its order are ours.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "grain.h"

namespace inlay::store {

using RangeId = uint32_t;

// Bytes [offset, offset + bytes) of a segment, in whole grains.
struct Range {
  RangeId id = 0;
  uint64_t offset = 0;
  uint64_t bytes = 0;
  bool free = false;
};

struct Allocation {
  Range range;
  // Free room directly before and directly behind it, which was one free range with it.
  uint64_t before = 0;
  uint64_t behind = 0;
};

// Costs are constant where none is given. 20 bytes for each range, allocated or free; that memory
// is kept when ranges join, for the next ones. For one thread at a time.
class RangeAllocator {
 public:
  static constexpr uint64_t kMaxBytes = kGrain << 32;
  static constexpr uint64_t kMaxAlignment = uint64_t{2} << 20;
  static constexpr std::size_t kRangeBytes = 20;

  // A segment of `bytes`, all of it free. Throws ArgumentError unless it is 1 to 2^32 grains.
  explicit RangeAllocator(uint64_t bytes);
  RangeAllocator(RangeAllocator&&) = default;
  RangeAllocator& operator=(RangeAllocator&&) = default;

  // A range of `bytes`, rounded up to grains, at a multiple of `alignment`: a power of two from 64
  // to 2 MiB. None: there is no room; that may be said, too, when ranges of the size's own class
  // fit but kTries older ones do not. Throws ArgumentError.
  //
  // Who would like more room than it needs now, and gets none, does best to ask for what it needs:
  // that fills the holes which objects of that size left.
  std::optional<Allocation> allocate(uint64_t bytes, uint64_t alignment = kGrain);

  // Marks these bytes, which must be whole grains, as allocated; none: not all of them are free.
  // Throws ArgumentError for what lies outside of the segment. Cost: the number of ranges between
  // this one and the one that was taken last, so take them in order.
  std::optional<Allocation> take(uint64_t offset, uint64_t bytes);

  // Cuts an allocated range behind its first `bytes`, whole grains: the id stays with the first
  // part, the other gets the one that is returned. Throws ArgumentError.
  RangeId split(RangeId id, uint64_t bytes);

  // Throws ArgumentError unless it is allocated.
  void free(RangeId id);

  // Of an allocated range. Throws ArgumentError.
  Range at(RangeId id) const;
  // The ranges that lie before and behind one, free or not; none at the ends.
  std::optional<Range> before(RangeId id) const;
  std::optional<Range> behind(RangeId id) const;
  // A number that its holder gave to an allocated range; kNoOwner at first. Takes no memory.
  static constexpr uint32_t kNoOwner = ~uint32_t{0};
  void set_owner(RangeId id, uint32_t owner);
  uint32_t owner(RangeId id) const;
  // All, by offset. Cost: their number.
  std::vector<Range> ranges() const;

  uint64_t bytes() const { return total_ * kGrain; }
  uint64_t free_bytes() const { return free_ * kGrain; }
  uint64_t used_bytes() const { return bytes() - free_bytes(); }
  std::size_t num_ranges() const { return num_ranges_; }
  // Cost: the free ranges of the largest class that has any.
  uint64_t largest_free_bytes() const;
  // The share of the free room that one range could not have; 0: it is in one piece, or none.
  double fragmentation() const;
  // The share of the free room in ranges of fewer than `bytes`. Cost: the free ranges of the class
  // of that size.
  double unusable(uint64_t bytes) const;
  // Memory for ranges that were ever there at a time, lists and all.
  std::size_t memory_bytes() const;

 private:
  using Grains = uint64_t;

  // A range ends where the next begins.
  struct Block {
    uint32_t start;   // grains
    RangeId before;   // by offset
    RangeId behind;   // by offset; of an id that is not in use: the next such
    RangeId older;    // of the free ranges of its class; kAllocated, kUnused
    RangeId younger;  // of an allocated range: its owner
  };
  static_assert(sizeof(Block) == kRangeBytes);

  static constexpr RangeId kNone = ~RangeId{0};
  static constexpr RangeId kFirst = 0;  // at offset 0, always: who joins keeps the first one's id
  static constexpr RangeId kAllocated = kNone - 1;
  static constexpr RangeId kUnused = kNone - 2;
  static constexpr unsigned kSteps = 32;  // classes from one power of two to the next
  static constexpr unsigned kPowers = 29;
  static constexpr unsigned kClasses = kPowers * kSteps;
  static constexpr unsigned kTries = 32;
  static constexpr unsigned kChunkBits = 12;
  static constexpr std::size_t kChunk = std::size_t{1} << kChunkBits;

  struct Class {
    RangeId oldest = kNone;
    RangeId youngest = kNone;
    Grains grains = 0;
  };
  // Where `grains` fit in a free range.
  struct Fit {
    RangeId id;
    uint32_t start;
  };

  static unsigned class_of(Grains grains);
  std::optional<unsigned> next_class(unsigned from) const;
  std::optional<unsigned> largest_class() const;

  Block& block(RangeId id) { return chunks_[id >> kChunkBits][id & (kChunk - 1)]; }
  const Block& block(RangeId id) const { return chunks_[id >> kChunkBits][id & (kChunk - 1)]; }
  Grains length(const Block& block) const;
  bool is_free(RangeId id) const;
  const Block& allocated(RangeId id) const;
  Range range(RangeId id) const;

  RangeId make_block(uint32_t start, RangeId before, RangeId behind);
  void drop_block(RangeId id);
  void enlist(RangeId id);
  void unlist(RangeId id);
  RangeId cut(RangeId id, Grains first);
  void join_behind(RangeId id);
  Allocation carve(RangeId id, uint32_t start, Grains grains);
  std::optional<Fit> find(Grains grains, Grains alignment) const;

  Grains total_ = 0;
  Grains free_ = 0;
  std::size_t num_ranges_ = 0;
  RangeId recent_ = kFirst;  // where the next take() begins to look
  RangeId unused_ = kNone;
  RangeId made_ = 0;  // ids below were in use
  // Chunks, so that growth moves nothing; a chunk's pages come as they are used.
  std::vector<std::unique_ptr<Block[]>> chunks_;
  std::unique_ptr<std::array<Class, kClasses>> classes_;
  uint32_t powers_ = 0;  // with a bit in steps_
  std::array<uint32_t, kPowers> steps_{};
};

}  // namespace inlay::store
