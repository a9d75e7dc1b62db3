// Which blocks of an instance's pages are copied to the tiers behind it, and when: what
// inlay.cache.WriteBack does.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "../cluster/digest.h"

namespace inlay::sim {

using cluster::Digest;

enum class WriteWhen : uint8_t { kThrough, kSecondHit, kEvict };

// A block that is to be copied, by its number in the PageCache.
struct Unsaved {
  uint32_t block;
  Digest name;
  Digest parent;
};

class WriteBack {
 public:
  explicit WriteBack(WriteWhen when) : when_(when) {}

  // Blocks that were to be copied but had to go before.
  uint64_t lost() const { return lost_; }
  // Whether cooling() makes a difference.
  bool waits_for_eviction() const { return when_ == WriteWhen::kEvict && num_unsaved_ != 0; }

  // A block that no tier is known to have can be reused from now on.
  void stored(uint32_t block, Digest name, Digest parent);
  // Another request uses it.
  void reused(uint32_t block) {
    if (when_ == WriteWhen::kSecondHit) wanted(block);
  }
  // It is one of the next to be evicted.
  void cooling(uint32_t block) {
    if (when_ == WriteWhen::kEvict) wanted(block);
  }
  // It is gone from its page; a copy that is being taken still becomes good.
  void evicted(uint32_t block);
  // Up to `limit` blocks to copy now.
  void take(std::size_t limit, std::vector<Unsaved>& batch);

 private:
  enum class Mark : uint8_t { kNone, kUnsaved, kQueued };
  struct State {
    Mark mark = Mark::kNone;
    uint64_t turn = 0;  // when it was queued; entries of other turns are old
    Digest name;
    Digest parent;
  };
  struct Entry {
    uint32_t block;
    uint64_t turn;
  };

  void wanted(uint32_t block);
  void queue(uint32_t block);

  WriteWhen when_;
  std::vector<State> states_;  // by block
  std::deque<Entry> queue_;
  uint64_t turn_ = 0;
  std::size_t num_unsaved_ = 0;
  uint64_t lost_ = 0;
};

}  // namespace inlay::sim
