#include "page_cache.h"

#include <algorithm>
#include <string>

#include "../core/errors.h"

namespace inlay::sim {

PageCache::PageCache(uint32_t num_pages, uint32_t page_tokens)
    : num_pages_(num_pages), page_tokens_(page_tokens), num_free_(num_pages) {
  if (num_pages == 0 || page_tokens == 0)
    throw ArgumentError("pages: there must be at least one of at least one token, got " +
                        std::to_string(num_pages) + " of " + std::to_string(page_tokens));
  cells_.assign(64, kNone);
}

uint32_t PageCache::match(const BlockNames& names, uint32_t max_tokens) const {
  // A block is only there while its parent is, so that a search by halves finds the end.
  uint32_t found = 0;
  uint32_t beyond = max_tokens / page_tokens_ + 1;
  while (beyond - found > 1) {
    const uint32_t middle = found + (beyond - found) / 2;
    (find(names[middle - 1]) != kNone ? found : beyond) = middle;
  }
  return found;
}

bool PageCache::hold(PageHold& hold, const BlockNames& names, uint32_t num_blocks,
                     uint32_t num_tokens) {
  if (pages_for(num_tokens) - num_blocks > room()) return false;
  hold.held = true;
  for (uint32_t i = 0; i < num_blocks; ++i) {
    const uint32_t block = find(names[i]);
    // Names that are not chained by their prefixes are a mistake of the trace; a prefix ends there.
    if (block == kNone) break;
    retain(block);
    hold.named.push_back(block);
  }
  hold.num_pages = static_cast<uint32_t>(hold.named.size());
  if (!reserve(hold, num_tokens)) {
    release(hold);
    return false;
  }
  if (write_back_ != nullptr)
    for (const uint32_t block : hold.named) write_back_->reused(block);
  return true;
}

bool PageCache::reserve(PageHold& hold, uint32_t num_tokens) {
  const uint32_t pages = pages_for(num_tokens);
  if (pages <= hold.num_pages) return true;
  if (!take(pages - hold.num_pages)) return false;
  hold.num_pages = pages;
  return true;
}

bool PageCache::take(uint32_t num_pages) {
  if (num_pages > room()) return false;
  while (num_free_ < num_pages) evict();
  num_free_ -= num_pages;
  return true;
}

void PageCache::publish(PageHold& hold, const BlockNames& names, uint32_t num_tokens, bool copied) {
  for (auto i = static_cast<uint32_t>(hold.named.size()); i < num_tokens / page_tokens_; ++i) {
    const Digest name = names[i];
    uint32_t block = find(name);
    if (block == kNone) {
      block = add(name);
      blocks_[block].references = 1;
      if (name.high == 0) changes_.push_back({name, true});
      if (write_back_ != nullptr && !copied)
        write_back_->stored(block, name, i == 0 ? kNoBlock : names[i - 1]);
    } else {
      retain(block);
      ++num_free_;
    }
    hold.named.push_back(block);
  }
}

uint32_t PageCache::adopt(PageHold& hold, const BlockNames& names, uint32_t num_blocks) {
  num_blocks = std::min(num_blocks, hold.num_pages);
  auto named = static_cast<uint32_t>(hold.named.size());
  for (; named < num_blocks; ++named) {
    const uint32_t block = find(names[named]);
    if (block == kNone) break;
    retain(block);
    ++num_free_;
    hold.named.push_back(block);
  }
  return named;
}

void PageCache::pin(uint32_t block) {
  num_pinned_idle_ += blocks_[block].pins++ == 0 && blocks_[block].references == 0;
}

void PageCache::unpin(uint32_t number) {
  Block& block = blocks_[number];
  if (--block.pins != 0) return;
  if (block.kept) {
    block.kept = false;
    --num_kept_;
    ++num_free_;
    unused_.push_back(number);
  } else if (block.references == 0) {
    --num_pinned_idle_;
  }
}

void PageCache::coldest(std::size_t limit, std::vector<uint32_t>& blocks) const {
  blocks.clear();
  for (uint32_t block = order_.coldest(kIdle); block != store::kNoObject && blocks.size() < limit;
       block = order_.hotter(block))
    blocks.push_back(block);
}

void PageCache::release(PageHold& hold) {
  num_free_ += hold.num_pages - static_cast<uint32_t>(hold.named.size());
  for (auto block = hold.named.rbegin(); block != hold.named.rend(); ++block) drop(*block);
  hold.named.clear();
  hold.num_pages = 0;
  hold.held = false;
}

void PageCache::forget() {
  while (num_idle_ != 0) evict();
}

void PageCache::audit() const {
  uint32_t used = 0;
  uint32_t idle = 0;
  for (const uint32_t block : cells_) {
    if (block == kNone) continue;
    ++used;
    idle += blocks_[block].references == 0;
    if (order_.listed(block) != (blocks_[block].references == 0))
      throw EngineError("an idle block is not in the order, or a used one is");
  }
  if (used != blocks_.size() - unused_.size() - num_kept_ || num_pinned_idle_ > idle ||
      idle != num_idle_ || used + num_kept_ + num_free_ > num_pages_)
    throw EngineError("pages: " + std::to_string(used) + " named, " + std::to_string(idle) +
                      " of " + std::to_string(num_idle_) + " idle, " + std::to_string(num_free_) +
                      " free of " + std::to_string(num_pages_));
}

std::size_t PageCache::hash(Digest name) {
  const auto product = static_cast<unsigned __int128>(name.low ^ 0x9e3779b97f4a7c15) *
                       (name.high ^ 0xbf58476d1ce4e5b9);
  return static_cast<std::size_t>(product) ^ static_cast<std::size_t>(product >> 64);
}

uint32_t PageCache::find(Digest name) const {
  const std::size_t mask = cells_.size() - 1;
  for (std::size_t at = hash(name) & mask; cells_[at] != kNone; at = (at + 1) & mask)
    if (blocks_[cells_[at]].name == name) return cells_[at];
  return kNone;
}

uint32_t PageCache::add(Digest name) {
  if (2 * (blocks_.size() - unused_.size() + 1) > cells_.size()) grow();
  if (unused_.empty()) {
    unused_.push_back(static_cast<uint32_t>(blocks_.size()));
    blocks_.emplace_back();
    order_.ensure(unused_.back());
  }
  const uint32_t block = unused_.back();
  unused_.pop_back();
  blocks_[block] = {name, 0};
  const std::size_t mask = cells_.size() - 1;
  std::size_t at = hash(name) & mask;
  while (cells_[at] != kNone) at = (at + 1) & mask;
  cells_[at] = block;
  return block;
}

void PageCache::erase(uint32_t block) {
  const std::size_t mask = cells_.size() - 1;
  std::size_t hole = hash(blocks_[block].name) & mask;
  while (cells_[hole] != block) hole = (hole + 1) & mask;
  // Later cells move back over the hole, unless their search begins behind it.
  for (std::size_t at = (hole + 1) & mask; cells_[at] != kNone; at = (at + 1) & mask) {
    const std::size_t home = hash(blocks_[cells_[at]].name) & mask;
    if (((at - home) & mask) >= ((at - hole) & mask)) {
      cells_[hole] = cells_[at];
      hole = at;
    }
  }
  cells_[hole] = kNone;
}

void PageCache::grow() {
  std::vector<uint32_t> before(2 * cells_.size(), kNone);
  before.swap(cells_);
  const std::size_t mask = cells_.size() - 1;
  for (const uint32_t block : before) {
    if (block == kNone) continue;
    std::size_t at = hash(blocks_[block].name) & mask;
    while (cells_[at] != kNone) at = (at + 1) & mask;
    cells_[at] = block;
  }
}

void PageCache::retain(uint32_t block) {
  if (blocks_[block].references++ != 0) return;
  order_.unlink(kIdle, block);
  --num_idle_;
  num_pinned_idle_ -= blocks_[block].pins != 0;
}

void PageCache::drop(uint32_t block) {
  if (--blocks_[block].references != 0) return;
  order_.push_hot(kIdle, block);
  ++num_idle_;
  num_pinned_idle_ += blocks_[block].pins != 0;
}

void PageCache::evict() {
  const uint32_t block = order_.coldest(kIdle);
  order_.unlink(kIdle, block);
  if (blocks_[block].name.high == 0) changes_.push_back({blocks_[block].name, false});
  erase(block);
  --num_idle_;
  if (write_back_ != nullptr) write_back_->evicted(block);
  if (blocks_[block].pins != 0) {
    blocks_[block].kept = true;
    ++num_kept_;
    --num_pinned_idle_;
  } else {
    unused_.push_back(block);
    ++num_free_;
  }
}

}  // namespace inlay::sim
