#include "prefetch.h"

#include <algorithm>

namespace inlay::sim {

void Prefetch::found(uint32_t num_blocks, uint32_t stretch_blocks) {
  asked_s = -1.0;
  const uint32_t start = std::max(first, front);
  uint32_t stop = std::min(first + num_blocks, last);
  // Whole stretches at the end: the odd one is the last to be loaded.
  while (stop > start) {
    const uint32_t begin = stop - start > stretch_blocks ? stop - stretch_blocks : start;
    stretches.push_back({begin, stop});
    stop = begin;
  }
  std::reverse(stretches.begin(), stretches.end());
  arrived.assign(stretches.empty() ? 0 : stretches.back().stop, kNoTier);
}

bool Prefetch::over() const {
  return asked_s < 0.0 && std::all_of(
                              stretches.begin(), stretches.end(),
                              [](const Stretch& one) { return one.state == Stretch::kOver; });
}

uint32_t Prefetch::coming() const {
  uint32_t blocks = num_arrived;
  for (const Stretch& stretch : stretches)
    if (stretch.state == Stretch::kQueued) blocks += stretch.num_blocks();
  if (admitted)
    for (const uint32_t count : taken) blocks -= count;
  return blocks;
}

uint32_t Prefetch::reach(uint32_t block) const {
  while (has_arrived(block)) ++block;
  return block;
}

Stretch* Prefetch::gate(uint32_t block) {
  for (Stretch& stretch : stretches)
    if (stretch.stop > block && stretch.state != Stretch::kOver) return &stretch;
  return nullptr;
}

uint32_t Prefetch::next_arrived(uint32_t block) const {
  for (; block < arrived.size(); ++block)
    if (arrived[block] != kNoTier) return block;
  return last;
}

bool Prefetch::done(uint32_t block) {
  if (block >= last) return true;
  return asked_s < 0.0 && gate(block) == nullptr && next_arrived(block) == last;
}

void Prefetch::take(uint32_t start, uint32_t stop) {
  for (; start < stop; ++start) ++taken[arrived[start]];
}

void Prefetch::forget_arrived() {
  std::fill(arrived.begin(), arrived.end(), kNoTier);
  num_arrived = 0;
  taken = {};
}

}  // namespace inlay::sim
