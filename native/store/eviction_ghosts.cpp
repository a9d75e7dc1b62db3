#include "eviction_ghosts.h"

#include <algorithm>

namespace inlay::store {
namespace {

constexpr unsigned kListShift = 4;
constexpr unsigned kTagShift = 5;
constexpr uint64_t kNumTags = (1 << 11) - 1;  // 0 is no tag
constexpr std::size_t kObjectsPerLine = 26;   // of 32: lines fill unevenly

uint16_t tag_of(uint64_t hash) {
  return static_cast<uint16_t>((((hash >> 32) & 0xFFFF) % kNumTags + 1) << kTagShift);
}

}  // namespace

uint32_t Ghosts::age_of(uint16_t entry) const {
  return (generation_[(entry >> kListShift) & 1] - entry) & 15;
}

void Ghosts::clean(Line& line) {
  for (uint16_t& entry : line.entries) {
    if (entry != 0 && age_of(entry) >= horizons_[(entry >> kListShift) & 1]) entry = 0;
  }
}

// A line's entries belong to either of the two that it becomes, so both get them.
void Ghosts::grow(uint32_t size) {
  while (lines_.size() * kObjectsPerLine < size) {
    const std::size_t old = lines_.size();
    lines_.resize(2 * old);
    std::copy_n(lines_.begin(), old, lines_.begin() + static_cast<std::ptrdiff_t>(old));
  }
}

void Ghosts::evicted(List list, uint64_t hash, bool keep, uint32_t size) {
  grow(size);
  // Every line is cleaned in each generation, so that no age runs over.
  const std::size_t length = std::max<std::size_t>(size / 4, lines_.size());
  if (++evicted_[list] >= length) {
    evicted_[list] = 0;
    generation_[list] = (generation_[list] + 1) & 15;
  }
  cleaned_ = (cleaned_ + 1) & (lines_.size() - 1);
  clean(lines_[cleaned_]);
  if (!keep) return;

  Line& line = line_of(hash);
  clean(line);
  const auto worth = [this](uint16_t entry) {  // less: gives way first
    if (entry == 0) return -1.0;
    return 1.0 - static_cast<double>(age_of(entry)) / horizons_[(entry >> kListShift) & 1];
  };
  uint16_t* place = line.entries.data();
  for (uint16_t& entry : line.entries) {
    if (worth(entry) < worth(*place)) place = &entry;
  }
  *place = static_cast<uint16_t>(tag_of(hash) | list << kListShift | generation_[list]);
}

Ghosts::Memory Ghosts::take(uint64_t hash) {
  const uint16_t tag = tag_of(hash);
  for (uint16_t& entry : line_of(hash).entries) {
    if (entry >> kTagShift != tag >> kTagShift) continue;
    const auto list = static_cast<List>((entry >> kListShift) & 1);
    const uint32_t age = age_of(entry);
    if (age >= horizons_[list]) continue;
    entry = 0;
    return {true, list, age};
  }
  return {};
}

}  // namespace inlay::store
