#include "eviction_ghosts.h"

#include <algorithm>

namespace inlay::store {
namespace {

// Of 21 entries: a list of newcomers with a horizon of 15, sampled, takes 0.94 per object.
constexpr std::size_t kObjectsPerLine = 18;

uint16_t ghost_tag(uint64_t hash) { return static_cast<uint16_t>((hash >> 32) % 0xFFFF + 1); }

}  // namespace

uint32_t Ghosts::age_of(uint8_t mark) const { return (generation_[list_of(mark)] - mark) & 15; }

void Ghosts::clean(Line& line) {
  for (std::size_t i = 0; i < kEntries; ++i) {
    if (age_of(line.marks[i]) >= horizons_[list_of(line.marks[i])]) line.tags[i] = 0;
  }
}

// The least gives way first.
double Ghosts::worth(const Line& line, std::size_t entry) const {
  if (line.tags[entry] == 0) return -1.0;
  const uint8_t mark = line.marks[entry];
  return 1.0 - static_cast<double>(age_of(mark)) / horizons_[list_of(mark)];
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
  std::size_t place = 0;
  for (std::size_t i = 1; i < kEntries; ++i) {
    if (worth(line, i) < worth(line, place)) place = i;
  }
  line.tags[place] = ghost_tag(hash);
  line.marks[place] = static_cast<uint8_t>(list << 4 | generation_[list]);
}

Ghosts::Memory Ghosts::take(uint64_t hash) {
  Line& line = line_of(hash);
  for (std::size_t i = 0; i < kEntries; ++i) {
    if (line.tags[i] != ghost_tag(hash)) continue;
    const uint32_t list = list_of(line.marks[i]);
    const uint32_t age = age_of(line.marks[i]);
    if (age >= horizons_[list]) continue;
    line.tags[i] = 0;
    return {true, static_cast<List>(list), age};
  }
  return {};
}

}  // namespace inlay::store
