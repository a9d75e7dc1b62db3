#include "range_allocator.h"

#include <algorithm>
#include <bit>
#include <string>
#include <utility>

#include "../core/errors.h"

namespace inlay::store {

namespace {

constexpr uint64_t align_up(uint64_t value, uint64_t alignment) {
  return (value + alignment - 1) & ~(alignment - 1);
}

void check_alignment(uint64_t alignment) {
  if (std::has_single_bit(alignment) && alignment >= kGrain &&
      alignment <= RangeAllocator::kMaxAlignment)
    return;
  throw ArgumentError("alignment: must be a power of two from " + std::to_string(kGrain) + " to " +
                      std::to_string(RangeAllocator::kMaxAlignment) + ", got " +
                      std::to_string(alignment));
}

}  // namespace

RangeAllocator::RangeAllocator(uint64_t bytes)
    : total_(bytes / kGrain), classes_(std::make_unique<std::array<Class, kClasses>>()) {
  if (bytes == 0 || bytes % kGrain != 0 || bytes > kMaxBytes)
    throw ArgumentError("bytes: a segment has 1 to 2^32 grains of " + std::to_string(kGrain) +
                        " bytes, got " + std::to_string(bytes) + " bytes");
  free_ = total_;
  enlist(make_block(0, kNone, kNone));
}

unsigned RangeAllocator::class_of(Grains grains) {
  if (grains < kSteps) return static_cast<unsigned>(grains);
  const unsigned shift = static_cast<unsigned>(std::bit_width(grains)) - std::bit_width(kSteps);
  return (shift + 1) * kSteps + static_cast<unsigned>((grains >> shift) % kSteps);
}

// The smallest class from this one on that has ranges.
std::optional<unsigned> RangeAllocator::next_class(unsigned from) const {
  if (from >= kClasses) return {};
  unsigned power = from / kSteps;
  uint32_t steps = steps_[power] & (~uint32_t{0} << (from % kSteps));
  if (steps == 0) {
    const uint32_t powers = powers_ & (~uint32_t{1} << power);
    if (powers == 0) return {};
    power = static_cast<unsigned>(std::countr_zero(powers));
    steps = steps_[power];
  }
  return power * kSteps + static_cast<unsigned>(std::countr_zero(steps));
}

std::optional<unsigned> RangeAllocator::largest_class() const {
  if (powers_ == 0) return {};
  const auto power = static_cast<unsigned>(std::bit_width(powers_) - 1);
  return power * kSteps + static_cast<unsigned>(std::bit_width(steps_[power]) - 1);
}

RangeAllocator::Grains RangeAllocator::length(const Block& block) const {
  const Grains end = block.behind == kNone ? total_ : this->block(block.behind).start;
  return end - block.start;
}

bool RangeAllocator::is_free(RangeId id) const {
  if (id == kNone) return false;
  const RangeId older = block(id).older;
  return older != kAllocated && older != kUnused;
}

const RangeAllocator::Block& RangeAllocator::allocated(RangeId id) const {
  if (id >= made_ || block(id).older != kAllocated)
    throw ArgumentError("range " + std::to_string(id) + " is not allocated");
  return block(id);
}

// Neither listed nor free yet.
RangeId RangeAllocator::make_block(uint32_t start, RangeId before, RangeId behind) {
  RangeId id = unused_;
  if (id != kNone) {
    unused_ = block(id).behind;
  } else {
    id = made_;
    if (id / kChunk == chunks_.size())
      chunks_.push_back(std::make_unique_for_overwrite<Block[]>(kChunk));
    ++made_;
  }
  block(id) = {start, before, behind, kAllocated, kNone};
  if (before != kNone) block(before).behind = id;
  if (behind != kNone) block(behind).before = id;
  ++num_ranges_;
  return id;
}

void RangeAllocator::drop_block(RangeId id) {
  Block& gone = block(id);
  block(gone.before).behind = gone.behind;
  if (gone.behind != kNone) block(gone.behind).before = gone.before;
  if (recent_ == id) recent_ = gone.before;
  gone.older = kUnused;
  gone.behind = std::exchange(unused_, id);
  --num_ranges_;
}

void RangeAllocator::enlist(RangeId id) {
  Block& mine = block(id);
  const Grains grains = length(mine);
  const unsigned which = class_of(grains);
  Class& list = (*classes_)[which];
  mine.older = list.youngest;
  mine.younger = kNone;
  (list.youngest == kNone ? list.oldest : block(list.youngest).younger) = id;
  list.youngest = id;
  list.grains += grains;
  steps_[which / kSteps] |= uint32_t{1} << (which % kSteps);
  powers_ |= uint32_t{1} << (which / kSteps);
}

void RangeAllocator::unlist(RangeId id) {
  Block& mine = block(id);
  const Grains grains = length(mine);
  const unsigned which = class_of(grains);
  Class& list = (*classes_)[which];
  (mine.older == kNone ? list.oldest : block(mine.older).younger) = mine.younger;
  (mine.younger == kNone ? list.youngest : block(mine.younger).older) = mine.older;
  list.grains -= grains;
  mine.older = kAllocated;
  if (list.oldest != kNone) return;
  uint32_t& steps = steps_[which / kSteps];
  steps &= ~(uint32_t{1} << (which % kSteps));
  if (steps == 0) powers_ &= ~(uint32_t{1} << (which / kSteps));
}

// The part behind the first `first` grains becomes a range of its own.
RangeId RangeAllocator::cut(RangeId id, Grains first) {
  const Block whole = block(id);
  return make_block(static_cast<uint32_t>(whole.start + first), id, whole.behind);
}

// A free range takes in the one behind it if that is free, too; neither is listed afterwards.
void RangeAllocator::join_behind(RangeId id) {
  const RangeId behind = block(id).behind;
  if (!is_free(behind)) return;
  unlist(behind);
  drop_block(behind);
}

// Takes grains [start, start + grains) out of a free range.
Allocation RangeAllocator::carve(RangeId id, uint32_t start, Grains grains) {
  unlist(id);
  const Grains before = start - block(id).start;
  if (before > 0) {
    const RangeId front = std::exchange(id, cut(id, before));
    enlist(front);
  }
  const Grains behind = length(block(id)) - grains;
  if (behind > 0) enlist(cut(id, grains));
  free_ -= grains;
  block(id).younger = kNoOwner;
  return {at(id), before * kGrain, behind * kGrain};
}

std::optional<RangeAllocator::Fit> RangeAllocator::find(Grains grains, Grains alignment) const {
  // Of this class on the first range fits, wherever it begins.
  const unsigned sure = class_of(grains + alignment - 1) + 1;
  unsigned tries = kTries;
  std::optional<unsigned> which = next_class(class_of(grains));
  for (; which && *which < sure && tries > 0; which = next_class(*which + 1)) {
    RangeId id = (*classes_)[*which].oldest;
    for (; id != kNone && tries > 0; id = block(id).younger, --tries) {
      const Block& found = block(id);
      const uint64_t start = align_up(found.start, alignment);
      if (start + grains <= found.start + length(found))
        return Fit{id, static_cast<uint32_t>(start)};
    }
  }
  which = next_class(sure);
  if (!which) return {};
  const RangeId id = (*classes_)[*which].oldest;
  return Fit{id, static_cast<uint32_t>(align_up(block(id).start, alignment))};
}

std::optional<Allocation> RangeAllocator::allocate(uint64_t bytes, uint64_t alignment) {
  check_alignment(alignment);
  if (bytes == 0) throw ArgumentError("bytes: a range has at least 1, got 0");
  if (bytes > this->bytes()) return {};
  const Grains grains = grain_ceil(bytes) / kGrain;
  const std::optional<Fit> fit = find(grains, alignment / kGrain);
  if (!fit) return {};
  return carve(fit->id, fit->start, grains);
}

std::optional<Allocation> RangeAllocator::take(uint64_t offset, uint64_t bytes) {
  if (offset % kGrain != 0 || bytes % kGrain != 0 || bytes == 0 || offset > this->bytes() ||
      bytes > this->bytes() - offset)
    throw ArgumentError("take: needs whole grains of " + std::to_string(kGrain) + " bytes inside " +
                        std::to_string(this->bytes()) + " bytes, got offset " +
                        std::to_string(offset) + " and " + std::to_string(bytes) + " bytes");
  const Grains start = offset / kGrain;
  const Grains grains = bytes / kGrain;
  RangeId id = recent_;
  while (block(id).start > start) id = block(id).before;
  while (block(id).start + length(block(id)) <= start) id = block(id).behind;
  recent_ = id;
  if (!is_free(id) || start + grains > block(id).start + length(block(id))) return {};
  return carve(id, static_cast<uint32_t>(start), grains);
}

RangeId RangeAllocator::split(RangeId id, uint64_t bytes) {
  const Grains whole = length(allocated(id));
  if (bytes % kGrain != 0 || bytes == 0 || bytes / kGrain >= whole)
    throw ArgumentError("split: the first part of " + std::to_string(whole * kGrain) +
                        " bytes needs whole grains and leaves one, got " + std::to_string(bytes) +
                        " bytes");
  return cut(id, bytes / kGrain);
}

void RangeAllocator::free(RangeId id) {
  free_ += length(allocated(id));
  join_behind(id);
  const RangeId before = block(id).before;
  if (is_free(before)) {
    unlist(before);
    drop_block(id);
    id = before;
  }
  enlist(id);
}

Range RangeAllocator::at(RangeId id) const {
  (void)allocated(id);
  return range(id);
}

Range RangeAllocator::range(RangeId id) const {
  const Block& found = block(id);
  return {id, found.start * kGrain, length(found) * kGrain, is_free(id)};
}

std::optional<Range> RangeAllocator::before(RangeId id) const {
  const RangeId other = block(id).before;
  return other == kNone ? std::nullopt : std::optional(range(other));
}

std::optional<Range> RangeAllocator::behind(RangeId id) const {
  const RangeId other = block(id).behind;
  return other == kNone ? std::nullopt : std::optional(range(other));
}

void RangeAllocator::set_owner(RangeId id, uint32_t owner) {
  (void)allocated(id);
  block(id).younger = owner;
}

uint32_t RangeAllocator::owner(RangeId id) const { return allocated(id).younger; }

std::vector<Range> RangeAllocator::ranges() const {
  std::vector<Range> all;
  all.reserve(num_ranges_);
  for (RangeId id = kFirst; id != kNone; id = block(id).behind) all.push_back(range(id));
  return all;
}

uint64_t RangeAllocator::largest_free_bytes() const {
  const std::optional<unsigned> which = largest_class();
  Grains most = 0;
  RangeId id = which ? (*classes_)[*which].oldest : kNone;
  for (; id != kNone; id = block(id).younger) most = std::max(most, length(block(id)));
  return most * kGrain;
}

double RangeAllocator::fragmentation() const {
  if (free_ == 0) return 0;
  return 1 - static_cast<double>(largest_free_bytes()) / static_cast<double>(free_bytes());
}

double RangeAllocator::unusable(uint64_t bytes) const {
  if (free_ == 0) return 0;
  if (bytes > this->bytes()) return 1;
  const Grains grains = grain_ceil(bytes) / kGrain;
  const unsigned own = class_of(grains);
  Grains lost = 0;
  for (unsigned which = 0; which < own; ++which) lost += (*classes_)[which].grains;
  for (RangeId id = (*classes_)[own].oldest; id != kNone; id = block(id).younger)
    if (length(block(id)) < grains) lost += length(block(id));
  return static_cast<double>(lost) / static_cast<double>(free_);
}

std::size_t RangeAllocator::memory_bytes() const {
  return made_ * kRangeBytes + sizeof(*this) + sizeof(*classes_) +
         chunks_.capacity() * sizeof(chunks_[0]);
}

}  // namespace inlay::store
