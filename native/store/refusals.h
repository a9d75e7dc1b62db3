// Which records were answered "not stored" though a node may have them still, so that one that
// comes back does not bring them as objects.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <utility>

namespace inlay::store {

// Unlike Burials this says nothing of older records of the key, which may be as good as before.
//
// Memory: at most kMost entries of 48 bytes; the oldest go first.
class Refusals {
 public:
  static constexpr std::size_t kMost = 65536;

  // `hash` is the key's: nobody can have another's record refused by its generation alone.
  void add(uint64_t generation, uint64_t hash) {
    known_.emplace(generation, hash);
    if (known_.size() > kMost) known_.erase(known_.begin());
  }
  bool contains(uint64_t generation, uint64_t hash) const {
    return known_.contains({generation, hash});
  }

  uint64_t memory_bytes() const { return known_.size() * kEntryBytes; }

 private:
  static constexpr uint64_t kEntryBytes = 48;  // with what a tree needs for it

  std::set<std::pair<uint64_t, uint64_t>> known_;
};

}  // namespace inlay::store
