// S3-FIFO: newcomers pass a small queue, and only what is hit there, or comes back soon after it
// was evicted, enters the main one, which gives what is hit another round.
//
// Source: Yang et al., FIFO queues are all you need for cache eviction (SOSP 2023). One hit in the
// small queue is enough here, which does better on block traces than two.
#pragma once

#include "eviction.h"
#include "eviction_ghosts.h"
#include "eviction_order.h"

namespace inlay::store {

class S3Fifo final : public EvictionPolicy {
 public:
  void add(std::span<const Newcomer> chain, uint64_t now_ns) override;
  void hit(std::span<const ObjectId> chain, uint64_t now_ns) override;
  ObjectId victim(uint64_t now_ns, const Held& held) override;
  void evict(ObjectId id, uint64_t hash) override;
  void remove(ObjectId id) override;
  bool contains(ObjectId id) const override { return order_.has(id) && order_.listed(id); }
  uint32_t size() const override { return num_[kSmall] + num_[kMain] + num_[kSoft]; }
  uint64_t memory_bytes() const override;
  std::vector<Listing> order() const override;

 private:
  enum List : uint8_t { kSmall, kMain, kSoft, kNumLists };
  struct State {
    List list;
    uint8_t hits;
  };
  static constexpr uint8_t kMaxHits = 3;
  static constexpr uint32_t kSmallShare = 10;  // one in

  void move(ObjectId id, List to);
  List next_list(uint64_t now_ns, const Held& held);

  Order order_{kNumLists};
  Chunks<State> states_;
  Ghosts ghosts_{4, 1};
  std::array<uint32_t, kNumLists> num_{};
};

}  // namespace inlay::store
