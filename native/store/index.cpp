#include "index.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "../core/errors.h"

namespace inlay::store {

namespace {

uint32_t tag_of(uint64_t hash) { return static_cast<uint32_t>(hash >> 32); }

}  // namespace

Index::Index(const KeyHash& hash) : hash_(hash) { directory_.push_back(make_page(0)); }

char* Index::piece(std::size_t shelf, uint32_t number) {
  return &shelves_[shelf].chunks[number >> kShelfBits]
                                [(number & ((1U << kShelfBits) - 1)) * piece_bytes(shelf)];
}

const char* Index::piece(std::size_t shelf, uint32_t number) const {
  return const_cast<Index*>(this)->piece(shelf, number);
}

std::string_view Index::key(ObjectId id) const {
  const Slot& one = slot(id);
  return {piece(shelf_of(one.object.key_bytes), one.key), one.object.key_bytes};
}

bool Index::matches(ObjectId id, std::string_view key) const {
  const Slot& one = slot(id);
  return one.object.key_bytes == key.size() &&
         std::memcmp(piece(shelf_of(key.size()), one.key), key.data(), key.size()) == 0;
}

ObjectId Index::look(uint32_t tag, std::string_view key) const {
  const Cell* const page = cells(page_of(tag));
  for (uint32_t at = tag % kCells; page[at].id != kNoObject; at = (at + 1) % kCells)
    if (page[at].tag == tag && matches(page[at].id, key)) return page[at].id;
  return kNoObject;
}

ObjectId Index::find(std::string_view key) const {
  if (key.empty() || key.size() > kMaxKeyBytes) return kNoObject;
  return look(tag_of(hash_(key)), key);
}

void Index::find(std::span<const std::string_view> keys, std::span<ObjectId> found) const {
  // Each step of all touches what the next one reads: page, object, key.
  constexpr std::size_t kTogether = 32;
  std::array<uint32_t, kTogether> tags;
  for (std::size_t begin = 0; begin < keys.size(); begin += kTogether) {
    const std::size_t count = std::min(kTogether, keys.size() - begin);
    const auto some = keys.subspan(begin, count);
    for (std::size_t i = 0; i < count; ++i) {
      tags[i] = tag_of(hash_(some[i]));
      __builtin_prefetch(&cells(page_of(tags[i]))[tags[i] % kCells]);
    }
    std::array<ObjectId, kTogether> guesses;
    for (std::size_t i = 0; i < count; ++i) {
      const Cell* const page = cells(page_of(tags[i]));
      uint32_t at = tags[i] % kCells;
      while (page[at].id != kNoObject && page[at].tag != tags[i]) at = (at + 1) % kCells;
      guesses[i] = page[at].id;
      if (guesses[i] != kNoObject) __builtin_prefetch(&slot(guesses[i]));
    }
    for (std::size_t i = 0; i < count; ++i) {
      if (guesses[i] == kNoObject) continue;
      const Slot& one = slot(guesses[i]);
      if (one.object.key_bytes == some[i].size())
        __builtin_prefetch(piece(shelf_of(one.object.key_bytes), one.key));
    }
    for (std::size_t i = 0; i < count; ++i) {
      ObjectId& to = found[begin + i];
      to = guesses[i];
      if (to == kNoObject) continue;
      if (some[i].empty() || some[i].size() > kMaxKeyBytes)
        to = kNoObject;
      else if (!matches(to, some[i]))
        to = look(tags[i], some[i]);
    }
  }
}

void Index::expect(std::string_view key) const {
  const uint32_t tag = tag_of(hash_(key));
  const Cell* const page = cells(page_of(tag));
  // Where there is none, the search goes on for a line or two.
  __builtin_prefetch(&page[tag % kCells]);
  __builtin_prefetch(&page[(tag + kLineCells) % kCells]);
}

void Index::put(Cell* cells, Cell cell) {
  uint32_t at = cell.tag % kCells;
  while (cells[at].id != kNoObject) at = (at + 1) % kCells;
  cells[at] = cell;
}

uint32_t Index::make_page(uint8_t depth) {
  const auto page = static_cast<uint32_t>(pages_.size());
  if (page >> kPageBits == cells_.size())
    cells_.push_back(std::make_unique_for_overwrite<Cell[]>(kCells << kPageBits));
  pages_.push_back({0, depth});
  std::fill_n(cells(page), kCells, Cell{kNoObject, 0});
  return page;
}

void Index::split(uint32_t tag) {
  const uint32_t old = page_of(tag);
  const unsigned depth = pages_[old].depth + 1U;
  // Half of a page's keys go at each split, unless somebody knows the seed.
  if (depth > 28)
    throw ResourceError("the store's index takes no more keys whose hashes are alike");
  if (depth > depth_) {
    std::vector<uint32_t> wider(directory_.size() * 2);
    for (std::size_t i = 0; i < wider.size(); ++i) wider[i] = directory_[i / 2];
    directory_ = std::move(wider);
    ++depth_;
  }
  const uint32_t fresh = make_page(static_cast<uint8_t>(depth));
  pages_[old].depth = static_cast<uint8_t>(depth);
  const uint32_t bit = 1U << (32 - depth);
  const std::size_t run = std::size_t{1} << (depth_ - depth);
  const std::size_t first = ((tag | bit) >> (32 - depth_)) & ~(run - 1);
  std::fill_n(directory_.begin() + static_cast<std::ptrdiff_t>(first), run, fresh);

  std::array<Cell, kCells> both;
  Cell* const mine = cells(old);
  std::copy_n(mine, kCells, both.begin());
  std::fill_n(mine, kCells, Cell{kNoObject, 0});
  pages_[old].used = 0;
  for (const Cell& cell : both) {
    if (cell.id == kNoObject) continue;
    const uint32_t page = (cell.tag & bit) != 0 ? fresh : old;
    put(cells(page), cell);
    ++pages_[page].used;
  }
}

uint32_t Index::store_key(std::string_view key) {
  const std::size_t number = shelf_of(key.size());
  Shelf& shelf = shelves_[number];
  uint32_t at = shelf.free;
  if (at != kNoObject) {
    std::memcpy(&shelf.free, piece(number, at), sizeof(shelf.free));
  } else {
    at = shelf.made;
    if (at >> kShelfBits == shelf.chunks.size())
      shelf.chunks.push_back(
          std::make_unique_for_overwrite<char[]>(piece_bytes(number) << kShelfBits));
    ++shelf.made;
  }
  std::memcpy(piece(number, at), key.data(), key.size());
  return at;
}

void Index::drop_key(std::size_t key_bytes, uint32_t at) {
  const std::size_t number = shelf_of(key_bytes);
  std::memcpy(piece(number, at), &shelves_[number].free, sizeof(uint32_t));
  shelves_[number].free = at;
}

ObjectId Index::insert(std::string_view key) {
  const uint32_t tag = tag_of(hash_(key));
  while (pages_[page_of(tag)].used == kMaxUsed) split(tag);
  ObjectId id = free_;
  if (id != kNoObject) {
    free_ = slot(id).key;
  } else {
    id = made_;
    if (id == kNoObject) throw ResourceError("the store's index holds 2^32 objects, and no more");
    if (id >> kSlotBits == slots_.size())
      slots_.push_back(std::make_unique_for_overwrite<Slot[]>(std::size_t{1} << kSlotBits));
    ++made_;
  }
  slot(id) = {{}, store_key(key)};
  slot(id).object.key_bytes = static_cast<uint16_t>(key.size());
  const uint32_t page = page_of(tag);
  put(cells(page), {id, tag});
  ++pages_[page].used;
  ++size_;
  return id;
}

void Index::erase(ObjectId id) {
  Slot& one = slot(id);
  const uint32_t tag = tag_of(hash(id));
  const uint32_t page = page_of(tag);
  Cell* const all = cells(page);
  uint32_t hole = tag % kCells;
  while (all[hole].id != id) hole = (hole + 1) % kCells;
  // What follows moves up, as far as that brings it no further than to where it is looked for.
  for (uint32_t at = (hole + 1) % kCells; all[at].id != kNoObject; at = (at + 1) % kCells) {
    const uint32_t from_home = (at - all[at].tag) % kCells;
    if (from_home < (at - hole) % kCells) continue;
    all[hole] = all[at];
    hole = at;
  }
  all[hole].id = kNoObject;
  --pages_[page].used;
  --size_;
  drop_key(one.object.key_bytes, one.key);
  one.object.key_bytes = 0;
  one.key = free_;
  free_ = id;
}

uint64_t Index::memory_bytes() const {
  uint64_t bytes = directory_.size() * sizeof(uint32_t) + pages_.size() * sizeof(Page) +
                   pages_.size() * kCells * sizeof(Cell) + uint64_t{made_} * sizeof(Slot);
  for (std::size_t i = 0; i < shelves_.size(); ++i)
    bytes += uint64_t{shelves_[i].made} * piece_bytes(i);
  return bytes;
}

}  // namespace inlay::store
