#include "eviction_s3fifo.h"

#include <algorithm>
#include <ranges>

namespace inlay::store {

// Children first, so that they leave the queue before their parents.
void S3Fifo::add(std::span<const Newcomer> chain, uint64_t) {
  for (const Newcomer& newcomer : std::views::reverse(chain)) {
    const ObjectId id = newcomer.id;
    order_.ensure(id);
    states_.ensure(id);
    const bool known = ghosts_.take(newcomer.hash).found;
    const List list = newcomer.soft_pin ? kSoft : known ? kMain : kSmall;
    states_[id] = {list, 0};
    order_.push_hot(list, id);
    ++num_[list];
  }
}

void S3Fifo::hit(std::span<const ObjectId> chain, uint64_t) {
  for (const ObjectId id : chain) {
    if (!contains(id)) continue;
    State& state = states_[id];
    state.hits = std::min<uint8_t>(kMaxHits, state.hits + 1);
  }
}

void S3Fifo::move(ObjectId id, List to) {
  State& state = states_[id];
  order_.unlink(state.list, id);
  order_.push_hot(to, id);
  --num_[state.list];
  ++num_[to];
  state.list = to;
}

S3Fifo::List S3Fifo::next_list(uint64_t now_ns, const Held& held) {
  const auto any = [&](List list) { return order_.coldest_free(list, held, now_ns) != kNoObject; };
  if (uint64_t{num_[kSmall]} * kSmallShare >= num_[kSmall] + num_[kMain] && any(kSmall)) {
    return kSmall;
  }
  return any(kMain) ? kMain : any(kSmall) ? kSmall : kSoft;
}

ObjectId S3Fifo::victim(uint64_t now_ns, const Held& held) {
  order_.restore(now_ns);
  for (;;) {
    const List list = next_list(now_ns, held);
    const ObjectId id = order_.coldest_free(list, held, now_ns);
    if (id == kNoObject) return id;
    State& state = states_[id];
    if (state.hits == 0) return id;
    // One from the small queue starts anew; in the others a hit is worth a round.
    state.hits = list == kSmall ? 0 : static_cast<uint8_t>(state.hits - 1);
    move(id, list == kSmall ? kMain : list);
  }
}

void S3Fifo::evict(ObjectId id, uint64_t hash) {
  if (!contains(id)) return;
  if (states_[id].list == kSmall) ghosts_.evicted(Ghosts::kNew, hash, true, size());
  remove(id);
}

void S3Fifo::remove(ObjectId id) {
  if (!contains(id)) return;
  order_.unlink(states_[id].list, id);
  --num_[states_[id].list];
}

uint64_t S3Fifo::memory_bytes() const {
  return order_.memory_bytes() + states_.memory_bytes() + ghosts_.memory_bytes();
}

std::vector<EvictionPolicy::Listing> S3Fifo::order() const {
  return {{"small", order_.ids(kSmall)}, {"main", order_.ids(kMain)}, {"soft", order_.ids(kSoft)}};
}

}  // namespace inlay::store
