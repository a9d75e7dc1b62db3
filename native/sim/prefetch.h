// What becomes of the blocks of one request behind those on the device: what inlay.cache.prefetch
// has. They are loaded from the last to the first while they are computed from the first to the
// last, until both meet.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "page_cache.h"

namespace inlay::sim {

struct Sequence;
struct LoadJob;

// Tiers behind the device, the nearest first.
enum TierName : uint8_t { kHost, kDisk, kStore, kNumTiers };
inline constexpr uint8_t kNoTier = kNumTiers;

// Neighbouring blocks that one call loads.
struct Stretch {
  enum State : uint8_t { kTodo, kQueued, kOver };

  uint32_t start;
  uint32_t stop;
  State state = kTodo;
  LoadJob* load = nullptr;  // under way
  double blocked_s = -1.0;  // when computing first had to wait for it; -1: it has not

  uint32_t num_blocks() const { return stop - start; }
};

struct Prefetch {
  Sequence* sequence;              // null where it is over
  uint32_t first;                  // blocks before it were on the device when the request came
  uint32_t last;                   // those from it on are of no use
  double asked_s;                  // when the tiers were asked; -1: they have answered
  bool admitted = false;           // the request runs
  double lent_s = -1.0;            // when it was given pages, while it waited
  uint32_t front = 0;              // blocks before it are computed, or being computed
  std::vector<Stretch> stretches;  // in order of position
  std::vector<uint8_t> arrived;    // by block: the tier that it was loaded from, or kNoTier
  uint32_t num_arrived = 0;
  std::array<uint32_t, kNumTiers> taken{};  // blocks that were loaded and need not be computed

  // The tiers have so many blocks from `first` on.
  void found(uint32_t num_blocks, uint32_t stretch_blocks);
  bool over() const;
  // Blocks that need no computing when their turn comes: they have come, or are being loaded.
  uint32_t coming() const;
  bool has_arrived(uint32_t block) const {
    return block < arrived.size() && arrived[block] != kNoTier;
  }
  // The end of the run of blocks that have arrived and begins with `block`.
  uint32_t reach(uint32_t block) const;
  // The first stretch that is not over and ends behind `block`; null: there is none.
  Stretch* gate(uint32_t block);
  // The first block from `block` on that has arrived, else `last`.
  uint32_t next_arrived(uint32_t block) const;
  // Whether a request that has its blocks before `block` gets no more from here.
  bool done(uint32_t block);
  // Counts blocks that have arrived and need not be computed.
  void take(uint32_t start, uint32_t stop);
  void forget_arrived();
};

// A stretch whose pages are being filled, or wait for that.
struct LoadJob {
  std::shared_ptr<Prefetch> prefetch;
  std::size_t stretch;  // of the prefetch's
  uint32_t start;
  uint32_t stop;
  std::vector<Digest> names;
  std::vector<uint8_t> tiers;  // by block, where it comes from; kNoTier: from nowhere
  uint32_t own_pages = 0;      // that are no longer those of the request
  bool begun = false;
  double begun_s = 0.0;
  double seconds = 0.0;
};

}  // namespace inlay::sim
