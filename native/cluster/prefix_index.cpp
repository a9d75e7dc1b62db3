#include "prefix_index.h"

#include <algorithm>
#include <bit>
#include <string>

#include "../core/errors.h"

namespace inlay::cluster {

namespace {

// Blocks whose places in the table are asked for ahead of the one that is worked on.
constexpr std::size_t kAhead = 8;

bool any(std::span<const uint64_t> words) {
  return std::any_of(words.begin(), words.end(), [](uint64_t word) { return word != 0; });
}

template <typename Each>
void for_each_ahead(const HolderTable& table, Chain blocks, Each each) {
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (i + kAhead < blocks.size()) table.prefetch(blocks[i + kAhead]);
    each(blocks[i]);
  }
}

}  // namespace

PrefixIndex::PrefixIndex(uint64_t seed0, uint64_t seed1)
    : known_(seed0, seed1), young_(seed0, seed1), old_(seed0, seed1) {}

std::size_t PrefixIndex::add() {
  const auto free = std::find(in_use_.begin(), in_use_.end(), false);
  const auto slot = static_cast<std::size_t>(free - in_use_.begin());
  if (slot == kMaxSlots)
    throw ResourceError("the prefix index has " + std::to_string(kMaxSlots) + " slots at most");
  if (free == in_use_.end()) in_use_.push_back(false);
  in_use_[slot] = true;
  if (slot / 64 >= words_) {
    words_ = std::bit_ceil(slot / 64 + 1);
    for (HolderTable* table : {&known_, &young_, &old_}) table->set_words(words_);
    ranges_.resize(64 * words_);
    sets_.resize(64 * words_ * words_);
  }
  return slot;
}

void PrefixIndex::remove(std::size_t slot) {
  require(slot);
  for (HolderTable* table : {&known_, &young_, &old_}) table->remove_all(static_cast<Slot>(slot));
  in_use_[slot] = false;
  while (!in_use_.empty() && !in_use_.back()) in_use_.pop_back();
}

void PrefixIndex::apply(std::size_t slot, bool stored, Chain blocks) {
  require(slot);
  for_each_ahead(known_, blocks, [&](Digest digest) {
    if (stored) {
      known_.add(digest, static_cast<Slot>(slot));
    } else {
      known_.remove(digest, static_cast<Slot>(slot));
    }
  });
}

void PrefixIndex::load(std::size_t slot, Chain blocks) {
  require(slot);
  known_.remove_all(static_cast<Slot>(slot));
  apply(slot, true, blocks);
}

void PrefixIndex::expect(std::size_t slot, Chain blocks) {
  require(slot);
  const Chain missing = blocks.from(known_prefix(slot, blocks));
  for_each_ahead(young_, missing,
                 [&](Digest digest) { young_.add(digest, static_cast<Slot>(slot)); });
}

std::size_t PrefixIndex::num_blocks(std::size_t slot) const {
  require(slot);
  return known_.count(static_cast<Slot>(slot));
}

void PrefixIndex::turn() {
  std::swap(old_, young_);
  young_.clear();
}

void PrefixIndex::match(Chain chain, std::span<int32_t> lengths) {
  std::fill(lengths.begin(), lengths.end(), 0);
  if (chain.size() == 0 || words_ == 0) return;
  const std::size_t room = ranges_.size();
  std::size_t first = 0;
  std::size_t count = 0;
  // Slots whose place in the chain is settled go to `lengths`, others into a range behind the rest.
  const auto put = [&](Range range, std::span<const uint64_t> slots) {
    if (!any(slots)) return;
    if (range.beyond - range.found == 1) {
      finish(slots, range.found, lengths);
      return;
    }
    for (const HolderTable* table : {&known_, &young_, &old_})
      table->prefetch(chain[range.middle() - 1]);
    const std::size_t place = (first + count++) % room;
    ranges_[place] = range;
    std::copy(slots.begin(), slots.end(), set_of(place).begin());
  };
  here_.assign(3 * words_, 0);
  const std::span<uint64_t> have(here_.data(), words_);
  const std::span<uint64_t> have_not(here_.data() + words_, words_);
  const std::span<uint64_t> holding(here_.data() + 2 * words_, words_);
  holders(chain[0], have);
  put({1, chain.size() + 1}, have);
  while (count != 0) {
    const Range range = ranges_[first];
    const std::span<const uint64_t> slots = set_of(first);
    std::fill(holding.begin(), holding.end(), 0);
    holders(chain[range.middle() - 1], holding);
    for (std::size_t w = 0; w < words_; ++w) {
      have[w] = slots[w] & holding[w];
      have_not[w] = slots[w] & ~holding[w];
    }
    first = (first + 1) % room;
    --count;
    put({range.middle(), range.beyond}, have);
    put({range.found, range.middle()}, have_not);
  }
}

std::size_t PrefixIndex::memory_bytes() const {
  return known_.memory_bytes() + young_.memory_bytes() + old_.memory_bytes() +
         ranges_.capacity() * sizeof(Range) + sets_.capacity() * sizeof(uint64_t);
}

void PrefixIndex::require(std::size_t slot) const {
  if (slot < in_use_.size() && in_use_[slot]) return;
  throw ArgumentError("slot: " + std::to_string(slot) + " is not in use");
}

void PrefixIndex::holders(Digest digest, std::span<uint64_t> words) const {
  for (const HolderTable* table : {&known_, &young_, &old_}) table->add_holders(digest, words);
}

std::size_t PrefixIndex::known_prefix(std::size_t slot, Chain chain) const {
  if (chain.size() == 0 || !known_.holds(chain[0], static_cast<Slot>(slot))) return 0;
  Range range{1, chain.size() + 1};
  while (range.beyond - range.found > 1) {
    const bool there = known_.holds(chain[range.middle() - 1], static_cast<Slot>(slot));
    (there ? range.found : range.beyond) = range.middle();
  }
  return range.found;
}

std::span<uint64_t> PrefixIndex::set_of(std::size_t number) {
  return {&sets_[number * words_], words_};
}

void PrefixIndex::finish(std::span<const uint64_t> slots, std::size_t length,
                         std::span<int32_t> lengths) {
  for (std::size_t w = 0; w < slots.size(); ++w)
    for (uint64_t rest = slots[w]; rest != 0; rest &= rest - 1)
      lengths[64 * w + static_cast<std::size_t>(std::countr_zero(rest))] =
          static_cast<int32_t>(length);
}

}  // namespace inlay::cluster
