#include "seen_prompts.h"

#include <algorithm>
#include <utility>

#include "../core/errors.h"

namespace inlay::cluster {

namespace {

constexpr double kStep = 0.03;  // of the mean

}  // namespace

SeenPrompts::SeenPrompts(uint64_t seed0, uint64_t seed1, std::size_t stride,
                         std::size_t max_digests)
    : seed_{seed0, seed1}, stride_(stride), max_digests_(max_digests) {
  if (stride == 0) throw ArgumentError("stride: must be at least 1, got 0");
}

double SeenPrompts::ready_s(Chain chain, std::size_t num_blocks) const {
  const std::size_t end = num_blocks / stride_ * stride_;
  if (end == 0 || end > chain.size()) return kNever_s;
  const double ready_s = find(new_, chain[end - 1]);
  return ready_s == kNever_s ? find(old_, chain[end - 1]) : ready_s;
}

void SeenPrompts::add(Chain chain, std::size_t num_held, double ready_s) {
  std::size_t known = num_held;
  const std::size_t last = chain.size() / stride_ * stride_;
  for (std::size_t end = last; end > 0; end -= stride_)
    for (const Table* table : {&new_, &old_})
      __builtin_prefetch(&table->cells[hash(chain[end - 1]) & (table->cells.size() - 1)]);
  // From the end: before a block that is known, all are.
  for (std::size_t end = last; end > 0; end -= stride_) {
    const Digest digest = chain[end - 1];
    if (find(new_, digest) != kNever_s || find(old_, digest) != kNever_s) {
      known = std::max(known, end);
      if (end <= num_held) break;
    }
    put(digest, ready_s);  // first, or once more where it is gone
  }
  if (new_.used > max_digests_) {
    old_ = std::move(new_);
    new_ = {};
  }
  if (known > 0)
    displaced_ +=
        kStep * (static_cast<double>(known - num_held) / static_cast<double>(known) - displaced_);
}

std::size_t SeenPrompts::hash(Digest digest) const {
  const auto product =
      static_cast<unsigned __int128>(digest.low ^ seed_[0]) * (digest.high ^ seed_[1]);
  return static_cast<std::size_t>(product) ^ static_cast<std::size_t>(product >> 64);
}

std::size_t SeenPrompts::place(const Table& table, Digest digest) const {
  const std::size_t mask = table.cells.size() - 1;
  std::size_t at = hash(digest) & mask;
  while (table.cells[at].ready_s != kNever_s && table.cells[at].digest != digest)
    at = (at + 1) & mask;
  return at;
}

double SeenPrompts::find(const Table& table, Digest digest) const {
  return table.cells[place(table, digest)].ready_s;
}

void SeenPrompts::put(Digest digest, double ready_s) {
  if (2 * (new_.used + 1) > new_.cells.size()) {
    Table wider;
    wider.cells.resize(2 * new_.cells.size());
    wider.used = new_.used;
    for (const Cell& cell : new_.cells)
      if (cell.ready_s != kNever_s) wider.cells[place(wider, cell.digest)] = cell;
    new_ = std::move(wider);
  }
  Cell& cell = new_.cells[place(new_, digest)];
  new_.used += cell.ready_s == kNever_s;
  cell = {digest, ready_s};
}

}  // namespace inlay::cluster
