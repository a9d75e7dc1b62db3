// What the eviction policy is told of objects: how they follow each other, and what they cost.
#include <unordered_map>
#include <utility>

#include "master.h"

namespace inlay::store {

std::optional<Newcomer> Master::newcomer(const Pool& pool, ObjectId id, std::string_view parent,
                                         uint32_t recompute_us) const {
  const Object& object = pool.index[id];
  if (object.ranked != 0 || (object.flags & kHardPin) != 0) return {};
  Newcomer one;
  one.id = id;
  if (!parent.empty()) one.parent = pool.index.find(parent);
  one.hash = pool.index.hash(id);
  one.bytes = std::max<uint64_t>(object.payload_bytes(), 1);
  one.recompute_ns = uint64_t{recompute_us} * 1000;
  one.soft_pin = (object.flags & kSoftPin) != 0;
  return one;
}

void Master::rank(Pool& pool, std::span<const Newcomer> chain, Millis now) {
  if (chain.empty()) return;
  for (const Newcomer& one : chain) pool.index[one.id].ranked = 1;
  pool.policy->add(chain, static_cast<uint64_t>(now) * 1'000'000);
}

void Master::unrank(Pool& pool, ObjectId id, bool evicted) {
  Object& object = pool.index[id];
  if (object.ranked == 0) return;
  object.ranked = 0;
  if (evicted)
    pool.policy->evict(id, pool.index.hash(id));
  else
    pool.policy->remove(id);
}

// A parent has to be ranked before what follows it, and nodes tell of their records in no order.
void Master::rank_advertised(Pool& pool, ObjectId id, const Advertise::Record& record, Millis now) {
  const auto one = newcomer(pool, id, record.parent, record.recompute_us);
  if (!one) return;
  if (record.parent.empty() || (one->parent != kNoObject && pool.index[one->parent].ranked != 0))
    return rank(pool, {&*one, 1}, now);
  pool.orphans.parents += record.parent;
  pool.orphans.all.push_back(
      {id, record.recompute_us, record.generation, pool.orphans.parents.size()});
}

// Nobody else comes: those whose parents did not follow none.
void Master::rank_orphans(Pool& pool, Millis now) {
  const Orphans orphans = std::exchange(pool.orphans, {});
  const auto parent_of = [&](std::size_t i) {
    const uint64_t begin = i == 0 ? 0 : orphans.all[i - 1].end;
    return std::string_view(orphans.parents).substr(begin, orphans.all[i].end - begin);
  };
  std::unordered_map<ObjectId, std::size_t> waiting;
  waiting.reserve(orphans.all.size());
  for (std::size_t i = 0; i < orphans.all.size(); ++i) {
    const auto& [id, recompute_us, generation, end] = orphans.all[i];
    if (id >= pool.index.end() || !pool.index.used(id) || pool.index[id].generation != generation)
      continue;
    const Replicas replicas = living(pool, pool.index[id]);
    if (replicas.count > 0 && segments_[replicas.all[0].segment]->ranges) waiting[id] = i;
  }
  std::vector<Newcomer> all;
  std::vector<std::size_t> chain;  // from one to its ancestors
  for (std::size_t first = 0; first < orphans.all.size(); ++first) {
    chain.clear();
    auto next = waiting.find(orphans.all[first].id);
    while (next != waiting.end()) {
      chain.push_back(next->second);
      waiting.erase(next);
      next = waiting.find(pool.index.find(parent_of(chain.back())));
    }
    for (; !chain.empty(); chain.pop_back()) {
      const Orphans::Orphan& orphan = orphans.all[chain.back()];
      const auto one = newcomer(pool, orphan.id, parent_of(chain.back()), orphan.recompute_us);
      if (one) all.push_back(*one);
    }
  }
  rank(pool, all, now);
}

}  // namespace inlay::store
