// The pages of one instance: which named blocks are in them, who uses them, and which go first when
// others are needed. What it does and in which order is that of inlay.cache.PagedKvCache, whose
// pages have contents; here they are counted.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "../cluster/digest.h"
#include "../store/eviction_order.h"
#include "write_back.h"

namespace inlay::sim {

using cluster::Digest;

// What a first block follows.
inline constexpr Digest kNoBlock{UINT64_MAX, UINT64_MAX};

// Names of a sequence's blocks: those of the prompt, which others may have, and behind them some
// that are its own, since no other one has computed the same output.
struct BlockNames {
  std::vector<Digest> prompt;  // `high` is 0
  uint64_t owner = 0;          // above 0

  Digest operator[](std::size_t i) const {
    return i < prompt.size() ? prompt[i] : Digest{i, owner};
  }
};

// Pages of a sequence: the first have names, and are perhaps shared.
struct PageHold {
  std::vector<uint32_t> named;
  uint32_t num_pages = 0;
  bool held = false;
};

// A block of a prompt came or went.
struct BlockChange {
  Digest name;
  bool stored;
};

class PageCache {
 public:
  PageCache(uint32_t num_pages, uint32_t page_tokens);

  uint32_t page_tokens() const { return page_tokens_; }
  uint32_t num_pages() const { return num_pages_; }
  uint32_t num_free() const { return num_free_; }
  uint32_t num_idle() const { return num_idle_; }

  // Leading blocks that are there, at most those of `max_tokens`.
  uint32_t match(const BlockNames& names, uint32_t max_tokens) const;
  // Takes the first `num_blocks` blocks, as just matched, and new pages up to `num_tokens` tokens
  // in all; or false, and nothing is taken.
  bool hold(PageHold& hold, const BlockNames& names, uint32_t num_blocks, uint32_t num_tokens);
  // Adds pages, so that there is room for `num_tokens` in all; or false, and none is added.
  bool reserve(PageHold& hold, uint32_t num_tokens);
  // Gives names to the full blocks among the first `num_tokens` tokens. Where one is there already,
  // the hold shares it.
  // Copied ones came from a tier.
  void publish(PageHold& hold, const BlockNames& names, uint32_t num_tokens, bool copied = false);
  // Shares what others have published meanwhile of the first `num_blocks` blocks; returns how many
  // have names now.
  uint32_t adopt(PageHold& hold, const BlockNames& names, uint32_t num_blocks);
  // Gives all pages back, children before parents.
  void release(PageHold& hold);

  bool has(Digest name) const { return find(name) != kNone; }

  // Pages that are in nobody's hold, since something is still written to them; or false, and none
  // is taken.
  bool take(uint32_t num_pages);
  void give_back(uint32_t num_pages) { num_free_ += num_pages; }
  // What is in a block's page stays until unpin(), whatever becomes of the block.
  void pin(uint32_t block);
  void unpin(uint32_t block);
  // Numbers of idle blocks, those that would be evicted next, first; at most `limit`.
  void coldest(std::size_t limit, std::vector<uint32_t>& blocks) const;

  // Hears of blocks from now on; not null.
  void tell(WriteBack* write_back) { write_back_ = write_back; }

  // Forgets all blocks that nobody uses.
  void forget();

  // Changes of prompts' blocks since they were last cleared.
  std::vector<BlockChange>& changes() { return changes_; }

  // Throws EngineError where the counts do not agree. Cost: all blocks; for tests.
  void audit() const;

 private:
  struct Block {
    Digest name;
    uint32_t references = 0;
    uint16_t pins = 0;
    bool kept = false;  // evicted, and only pins keep its page from being free
  };
  static constexpr uint32_t kNone = UINT32_MAX;
  static constexpr uint32_t kIdle = 0;  // the only list of `order_`

  uint32_t pages_for(uint32_t num_tokens) const {
    return (num_tokens + page_tokens_ - 1) / page_tokens_;
  }
  static std::size_t hash(Digest name);
  uint32_t room() const { return num_free_ + num_idle_ - num_pinned_idle_; }
  uint32_t find(Digest name) const;
  uint32_t add(Digest name);
  void erase(uint32_t block);
  void grow();
  void retain(uint32_t block);
  void drop(uint32_t block);
  void evict();

  uint32_t num_pages_;
  uint32_t page_tokens_;
  uint32_t num_free_;
  uint32_t num_idle_ = 0;
  uint32_t num_pinned_idle_ = 0;  // of them, those whose eviction would free no page now
  uint32_t num_kept_ = 0;
  WriteBack* write_back_ = nullptr;
  std::vector<Block> blocks_;
  std::vector<uint32_t> unused_;  // of `blocks_`
  std::vector<uint32_t> cells_;   // open addressing, linear probing: numbers of `blocks_`
  store::Order order_{1};
  std::vector<BlockChange> changes_;
};

}  // namespace inlay::sim
