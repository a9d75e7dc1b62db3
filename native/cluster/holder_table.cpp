#include "holder_table.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace inlay::cluster {

// Digests are hashes already: this only makes unknown which of them collide.
uint64_t HolderTable::hash(Digest digest) const {
  const auto product =
      static_cast<unsigned __int128>(digest.low ^ seed_[0]) * (digest.high ^ seed_[1]);
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

void HolderTable::set_words(std::size_t words) {
  if (words <= words_) return;
  const std::size_t crowds = words_ == 0 ? 0 : crowds_.size() / words_;
  std::vector<uint64_t> wider(crowds * words, 0);
  for (std::size_t i = 0; i < crowds; ++i)
    std::copy_n(&crowds_[i * words_], words_, &wider[i * words]);
  crowds_ = std::move(wider);
  words_ = words;
  counts_.resize(64 * words);
}

const HolderTable::Cell* HolderTable::find(Digest digest) const {
  const uint64_t hashed = hash(digest);
  const Shard& shard = shards_[shard_of(hashed)];
  if (shard.used == 0) return nullptr;
  for (std::size_t at = shard.home(hashed); !shard.cells[at].empty(); at = shard.next(at))
    if (shard.cells[at].digest == digest) return &shard.cells[at];
  return nullptr;
}

void HolderTable::prefetch(Digest digest) const {
  const uint64_t hashed = hash(digest);
  const Shard& shard = shards_[shard_of(hashed)];
  if (shard.used == 0) return;
  // Half of the searches go on into the next line.
  const char* home = reinterpret_cast<const char*>(&shard.cells[shard.home(hashed)]);
  __builtin_prefetch(home);
  __builtin_prefetch(home + 64);
}

void HolderTable::add(Digest digest, Slot slot) {
  const uint64_t hashed = hash(digest);
  Shard& shard = shards_[shard_of(hashed)];
  if (4 * (std::size_t{shard.used} + 1) > 3 * std::size_t{shard.num_cells})
    resize(shard, std::max(kLeastCells, std::size_t{shard.num_cells} * 3 / 2));
  std::size_t at = shard.home(hashed);
  for (; !shard.cells[at].empty(); at = shard.next(at))
    if (shard.cells[at].digest == digest) break;
  if (shard.cells[at].empty()) {
    shard.cells[at].digest = digest;
    ++shard.used;
    ++size_;
  }
  put(shard.cells[at], slot);
}

void HolderTable::remove(Digest digest, Slot slot) {
  Cell* cell = const_cast<Cell*>(std::as_const(*this).find(digest));
  if (cell == nullptr || !take(*cell, slot) || !cell->empty()) return;
  Shard& shard = shards_[shard_of(hash(digest))];
  erase(shard, static_cast<std::size_t>(cell - shard.cells.get()));
  shrink(shard);
}

void HolderTable::remove_all(Slot slot) {
  if (counts_[slot] == 0) return;
  for (Shard& shard : shards_) {
    // What moves into a place comes from behind it, or from the beginning, which has been seen.
    for (std::size_t at = 0; at < shard.num_cells;) {
      Cell& cell = shard.cells[at];
      if (take(cell, slot) && cell.empty()) {
        erase(shard, at);
      } else {
        ++at;
      }
    }
    shrink(shard);
  }
}

void HolderTable::clear() {
  shards_ = {};
  crowds_ = {};
  free_crowds_ = {};
  size_ = 0;
  std::fill(counts_.begin(), counts_.end(), 0);
}

bool HolderTable::holds(Digest digest, Slot slot) const {
  const Cell* cell = find(digest);
  return cell != nullptr && has(*cell, slot);
}

void HolderTable::add_holders(Digest digest, std::span<uint64_t> words) const {
  const Cell* cell = find(digest);
  if (cell == nullptr) return;
  if (cell->crowded()) {
    const uint64_t* bits = crowd(*cell);
    for (std::size_t w = 0; w < words_; ++w) words[w] |= bits[w];
    return;
  }
  for (const Slot slot : cell->lanes) {
    if (slot == kNobody) break;
    words[slot / 64] |= uint64_t{1} << slot % 64;
  }
}

std::size_t HolderTable::memory_bytes() const {
  std::size_t bytes = sizeof(*this) + crowds_.capacity() * sizeof(uint64_t) +
                      free_crowds_.capacity() * sizeof(uint32_t);
  for (const Shard& shard : shards_) bytes += shard.num_cells * sizeof(Cell);
  return bytes;
}

void HolderTable::resize(Shard& shard, std::size_t num_cells) {
  Shard fresh{std::make_unique<Cell[]>(num_cells), static_cast<uint32_t>(num_cells), shard.used};
  for (std::size_t from = 0; from < shard.num_cells; ++from) {
    const Cell& cell = shard.cells[from];
    if (cell.empty()) continue;
    std::size_t at = fresh.home(hash(cell.digest));
    while (!fresh.cells[at].empty()) at = fresh.next(at);
    fresh.cells[at] = cell;
  }
  shard = std::move(fresh);
}

void HolderTable::shrink(Shard& shard) {
  const std::size_t wanted = std::max(kLeastCells, std::size_t{shard.used} * 2);
  if (wanted < shard.num_cells / 4) resize(shard, wanted);
}

// A cell may move back to a hole unless that lies before its home.
void HolderTable::erase(Shard& shard, std::size_t at) {
  std::size_t hole = at;
  for (std::size_t from = shard.next(at); !shard.cells[from].empty(); from = shard.next(from)) {
    const std::size_t home = shard.home(hash(shard.cells[from].digest));
    if (shard.distance(home, from) < shard.distance(hole, from)) continue;
    shard.cells[hole] = shard.cells[from];
    hole = from;
  }
  shard.cells[hole] = Cell{};
  --shard.used;
  --size_;
}

bool HolderTable::has(const Cell& cell, Slot slot) const {
  if (!cell.crowded()) return cell.names(slot);
  return (crowd(cell)[slot / 64] >> slot % 64 & 1) != 0;
}

void HolderTable::put(Cell& cell, Slot slot) {
  if (has(cell, slot)) return;
  ++counts_[slot];
  if (!cell.crowded()) {
    const auto lane = std::find(cell.lanes.begin(), cell.lanes.end(), kNobody);
    if (lane != cell.lanes.end()) {
      *lane = slot;
      return;
    }
    gather(cell);
  }
  crowd(cell)[slot / 64] |= uint64_t{1} << slot % 64;
}

bool HolderTable::take(Cell& cell, Slot slot) {
  if (!has(cell, slot)) return false;
  --counts_[slot];
  if (cell.crowded()) {
    crowd(cell)[slot / 64] &= ~(uint64_t{1} << slot % 64);
    disperse(cell);
  } else {
    const auto lane = std::find(cell.lanes.begin(), cell.lanes.end(), slot);
    std::copy(lane + 1, cell.lanes.end(), lane);
    cell.lanes.back() = kNobody;
  }
  return true;
}

// The four slots of a cell get a crowd.
void HolderTable::gather(Cell& cell) {
  if (free_crowds_.empty()) {
    free_crowds_.push_back(static_cast<uint32_t>(crowds_.size() / words_));
    crowds_.resize(crowds_.size() + words_);
  }
  const uint32_t number = free_crowds_.back();
  free_crowds_.pop_back();
  uint64_t* bits = &crowds_[number * words_];
  std::fill_n(bits, words_, 0);
  for (const Slot slot : cell.lanes) bits[slot / 64] |= uint64_t{1} << slot % 64;
  cell.lanes = {static_cast<Slot>(number), static_cast<Slot>(number >> 16), kNobody, kCrowd};
}

// A crowd of few is none.
void HolderTable::disperse(Cell& cell) {
  const std::span<const uint64_t> bits(crowd(cell), words_);
  int count = 0;
  for (const uint64_t word : bits) count += std::popcount(word);
  if (count > kFew) return;
  free_crowds_.push_back(static_cast<uint32_t>(cell.crowd()));
  cell.lanes.fill(kNobody);
  std::size_t lane = 0;
  for (std::size_t w = 0; w < bits.size(); ++w)
    for (uint64_t rest = bits[w]; rest != 0; rest &= rest - 1)
      cell.lanes[lane++] =
          static_cast<Slot>(64 * w + static_cast<std::size_t>(std::countr_zero(rest)));
}

}  // namespace inlay::cluster
