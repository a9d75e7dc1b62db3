// The default: recompute time x probability of reuse / bytes, and never a parent before its child.
//
// - Only objects without children are in lists, so a prefix is evicted from its end.
// - Probability of reuse: newcomers are kept apart from those that were hit, or that came back
//   after they had been evicted (the main part), each in the order of last use. Newcomers get a
//   share of the room, which shrinks when something comes back that the main part had to drop
//   lately, and grows when one comes back that was dropped as a newcomer a moment ago.
// - Recompute time / bytes: objects are sorted into ranges of it, a factor of two each, with a main
//   part and newcomers of its own. The next victim is of the range whose oldest object is oldest
//   for its worth: what costs twice as much to compute is kept twice as long.
//
// Sources: ARC (Megiddo, Modha, FAST 2003) and 2Q (Johnson, Shasha, VLDB 1994) for the two parts
// and what moves their border; CAMP (Ghandeharizadeh et al., Middleware 2014) for the ranges.
#pragma once

#include "eviction.h"
#include "eviction_ghosts.h"
#include "eviction_order.h"

namespace inlay::store {

class CostAware final : public EvictionPolicy {
 public:
  void add(std::span<const Newcomer> chain, uint64_t now_ns) override;
  void hit(std::span<const ObjectId> chain, uint64_t now_ns) override;
  ObjectId victim(uint64_t now_ns, const Held& held) override;
  void evict(ObjectId id, uint64_t hash) override;
  void remove(ObjectId id) override;
  bool contains(ObjectId id) const override { return nodes_.has(id) && nodes_[id].present; }
  uint32_t size() const override { return size_; }
  uint64_t memory_bytes() const override;
  std::vector<Listing> order() const override;

  // Of the room of a range, at which newcomers have to go first.
  double newcomers_share() const { return share_; }

 private:
  enum Part : uint32_t { kNew, kMain, kSoft, kNumParts };
  static constexpr uint32_t kNumRanges = 16;
  static constexpr uint32_t kNumLists = kNumParts * kNumRanges;

  // An object that has children is in no list, and the word of its links counts them. One that is
  // removed before its children leaves them behind: they know by its incarnation that they follow
  // it no longer when its number is used again.
  struct Node {
    ObjectId parent = kNoObject;
    uint32_t touched : 20 = 0;  // of the clock's units, modulo 2^20: 13 days
    uint32_t range : 4 = 0;
    uint32_t part : 2 = 0;
    uint32_t present : 1 = 0;
    uint32_t incarnation : 2 = 0;
    uint32_t parent_incarnation : 2 = 0;
  };

  static uint32_t list_of(const Node& node) { return node.part * kNumRanges + node.range; }
  bool has_parent(const Node& node) const;
  void follow(Node& node, ObjectId parent);
  bool remembers(const Newcomer& newcomer, bool alone);
  void promote(ObjectId id);
  void count(const Node& node, int by);
  void leave(ObjectId id);
  void place(ObjectId id);
  void set_clock(uint64_t now_ns);
  uint32_t age(ObjectId id) const;
  uint64_t staleness(ObjectId oldest, uint32_t range) const;
  ObjectId stalest_soft(uint64_t now_ns, const Held& held);

  Order order_{kNumLists};
  Chunks<Node> nodes_;
  Ghosts ghosts_{15, 4};
  std::array<std::array<uint32_t, kNumRanges>, kNumParts> num_{};
  std::array<uint32_t, kNumRanges> full_{};  // newcomers and main part when something was added
  uint32_t size_ = 0;
  uint32_t clock_ = 0;  // units of about a second, never back
  double share_ = 0.1;
};

}  // namespace inlay::store
