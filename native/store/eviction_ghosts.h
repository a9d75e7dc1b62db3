// Remembers which objects were evicted lately, and from which of two lists, in three bytes each.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace inlay::store {

// A table of lines of 21 entries, one cache line each. An entry is 16 bits of the key's hash, the
// list, and the generation in which it was evicted: a generation ends when a quarter as many
// objects as there are have left the list. Entries expire after as many generations as the list's
// horizon says; in a full line the oldest gives way. One in 3,000 lookups of an unknown key finds
// an entry by mistake. Shorter tags are no bargain: a mistake lets one into the main part that a
// scan should not reach.
//
// Cost: one line per call, and one more per eviction, for expired entries. Memory: 3.6 bytes per
// object, up to twice that after growth.
class Ghosts {
 public:
  enum List : uint32_t { kNew = 0, kMain = 1 };
  static constexpr uint32_t kMaxHorizon = 15;  // generations

  Ghosts(uint32_t new_horizon, uint32_t main_horizon) : horizons_{new_horizon, main_horizon} {}

  // An object was evicted from `list`, where `size` were left in all. `keep`: remember it.
  void evicted(List list, uint64_t hash, bool keep, uint32_t size);

  struct Memory {
    bool found = false;
    List list = kNew;
    uint32_t age = 0;  // whole generations since the eviction
  };
  // And forgets it.
  Memory take(uint64_t hash);

  uint64_t memory_bytes() const { return lines_.capacity() * sizeof(Line); }

 private:
  static constexpr std::size_t kEntries = 21;
  struct alignas(64) Line {
    std::array<uint16_t, kEntries> tags{};  // 0: empty
    std::array<uint8_t, kEntries> marks{};  // list and generation, four bits each
  };

  void grow(uint32_t size);
  static uint32_t list_of(uint8_t mark) { return mark >> 4; }
  uint32_t age_of(uint8_t mark) const;
  double worth(const Line& line, std::size_t entry) const;
  void clean(Line& line);
  Line& line_of(uint64_t hash) { return lines_[hash & (lines_.size() - 1)]; }

  std::array<uint32_t, 2> horizons_;
  std::array<uint32_t, 2> generation_{};  // modulo 16
  std::array<uint32_t, 2> evicted_{};     // in this generation
  std::vector<Line> lines_ = std::vector<Line>(1);
  std::size_t cleaned_ = 0;
};

}  // namespace inlay::store
