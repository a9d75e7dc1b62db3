#include "eviction_lru.h"

#include <ranges>

namespace inlay::store {

void Lru::add(std::span<const Newcomer> chain, uint64_t) {
  for (const Newcomer& newcomer : chain) {
    const ObjectId id = newcomer.id;
    order_.ensure(id);
    list_.ensure(id);
    list_[id] = newcomer.soft_pin ? kSoft : kPlain;
    const ObjectId parent = newcomer.parent;
    const bool beside = parent != kNoObject && contains(parent) && list_[parent] == list_[id];
    order_.insert_below(list_[id], id, beside ? parent : kNoObject);
    ++size_;
  }
}

void Lru::hit(std::span<const ObjectId> chain, uint64_t) {
  for (const ObjectId id : std::views::reverse(chain)) {
    if (!contains(id)) continue;
    order_.unlink(list_[id], id);
    order_.push_hot(list_[id], id);
  }
}

ObjectId Lru::victim(uint64_t now_ns, const Held& held) {
  order_.restore(now_ns);
  const ObjectId id = order_.coldest_free(kPlain, held, now_ns);
  return id != kNoObject ? id : order_.coldest_free(kSoft, held, now_ns);
}

void Lru::evict(ObjectId id, uint64_t) { remove(id); }

void Lru::remove(ObjectId id) {
  if (!contains(id)) return;
  order_.unlink(list_[id], id);
  --size_;
}

uint64_t Lru::memory_bytes() const { return order_.memory_bytes() + list_.memory_bytes(); }

std::vector<EvictionPolicy::Listing> Lru::order() const {
  return {{"plain", order_.ids(kPlain)}, {"soft", order_.ids(kSoft)}};
}

}  // namespace inlay::store
