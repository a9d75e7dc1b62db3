// Which object of a segment goes when room is needed: policies as pure objects. They know no keys,
// no bytes in memory and no clock; a master runs one per segment, the simulator the same code.
//
// Objects are dense numbers of the caller's, used again after evict() or remove(). A chain is the
// blocks of one prompt, or a run of them: each follows its predecessor and is worth nothing without
// it. Objects that follow none are chains of one. What is not there is passed over by hit() and
// remove(), so that reports may come late.
//
// Room is made so:
//   while (room is short) {
//     id = policy.victim(now, held);      // changes nothing that matters; kNoObject: all are held
//     ... kill its record ...
//     policy.evict(id, hash of its key);
//   }
//
// Cost: constant per object of a call (victim() too, spread over calls), no scan of objects. Memory
// per number up to the largest given: lru 9 bytes, s3fifo 10 and cost 16, and these two 3.6 to 7.1
// for what was evicted.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "eviction_order.h"

namespace inlay::store {

// An object that is added.
struct Newcomer {
  ObjectId id = kNoObject;
  ObjectId parent = kNoObject;  // which it follows; kNoObject or one that is not there: none
  uint64_t hash = 0;            // of its key: well mixed, 64 bits
  uint64_t bytes = 1;
  uint64_t recompute_ns = 0;  // to compute it again when its parent is there; 0: unknown
  bool soft_pin = false;      // goes when nothing else can
  bool wanted = false;        // somebody asked for it while it was not there
};

class EvictionPolicy {
 public:
  virtual ~EvictionPolicy() = default;

  // Blocks of a chain, parents first; none of them is there. Their parents have been hit before.
  virtual void add(std::span<const Newcomer> chain, uint64_t now_ns) = 0;
  // The same for objects that were read, or stored again.
  virtual void hit(std::span<const ObjectId> chain, uint64_t now_ns) = 0;

  // The object to evict next, or kNoObject. It stays until evict(). Objects for which `held` is
  // true are set aside for kHeldRecheckNs without losing their place, and not asked for meanwhile.
  virtual ObjectId victim(uint64_t now_ns, const Held& held) = 0;
  // `id` is there. It may be any object, not only a victim.
  virtual void evict(ObjectId id, uint64_t hash) = 0;
  // As evict(), for what was removed by its owner: whether it comes back says nothing.
  virtual void remove(ObjectId id) = 0;

  virtual bool contains(ObjectId id) const = 0;
  virtual uint32_t size() const = 0;
  virtual uint64_t memory_bytes() const = 0;

  // Every list of the policy, coldest first, for tests and `explain`. Cost: all objects.
  struct Listing {
    std::string name;
    std::vector<ObjectId> ids;
  };
  virtual std::vector<Listing> order() const = 0;
};

inline constexpr std::string_view kDefaultEviction = "cost";

// "lru", "s3fifo" or "cost"; null for another name.
std::unique_ptr<EvictionPolicy> make_eviction_policy(std::string_view name);

}  // namespace inlay::store
