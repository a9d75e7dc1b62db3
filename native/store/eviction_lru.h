// Least recently used: what was read longest ago goes first. Blocks that came with their parents,
// or after these were hit, go before them.
#pragma once

#include "eviction.h"
#include "eviction_order.h"

namespace inlay::store {

class Lru final : public EvictionPolicy {
 public:
  void add(std::span<const Newcomer> chain, uint64_t now_ns) override;
  void hit(std::span<const ObjectId> chain, uint64_t now_ns) override;
  ObjectId victim(uint64_t now_ns, const Held& held) override;
  void evict(ObjectId id, uint64_t hash) override;
  void remove(ObjectId id) override;
  bool contains(ObjectId id) const override { return order_.has(id) && order_.listed(id); }
  uint32_t size() const override { return size_; }
  uint64_t memory_bytes() const override;
  std::vector<Listing> order() const override;

 private:
  enum List : uint8_t { kPlain, kSoft, kNumLists };
  Order order_{kNumLists};
  Chunks<List> list_;
  uint32_t size_ = 0;
};

}  // namespace inlay::store
