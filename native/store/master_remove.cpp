// How objects leave a master, and the answers that wait until their records are dead.
#include <algorithm>

#include "master.h"

namespace inlay::store {

namespace {}  // namespace

bool Master::kill(Pool& pool, const Replica& replica, uint64_t generation, std::string_view key,
                  uint64_t waiter) {
  Segment& segment = *segments_[replica.segment];
  // Of a lost segment nothing is heard: only time ends what is cached of it.
  if (!usable(segment)) return true;
  if (segment.ranges) {
    const Range range = segment.ranges->at(replica.range);
    segment.kills.push_back({range.offset, generation});
    segment.killed.push_back({replica.range, range.bytes, waiter});
    pool.leaving_bytes += range.bytes;
    segment.ranges->set_owner(replica.range, kLeaving);
  } else {
    segment.kills.push_back({Place::kSomewhere, generation});
    segment.killed.push_back({0, 0, waiter});
    segment.killed_keys.emplace_back(key);
  }
  dirty_.push_back(segment.node);
  return true;
}

uint32_t Master::drop_object(Pool& pool, ObjectId id, uint64_t waiter) {
  const Object& object = pool.index[id];
  const std::string_view key = pool.index.key(id);
  uint32_t kills = 0;
  for (const Replica& replica : replicas_of(pool, object))
    kills += kill(pool, replica, object.generation, key, waiter) ? 1 : 0;
  bury_if_mutable(pool, id, object.generation);
  forget(pool, id);
  return kills;
}

// What was written before under that key is gone for good: also what was never committed, and comes
// back with a node that has it.
uint32_t Master::remove_object(Pool& pool, ObjectId id, uint64_t waiter) {
  bury(pool, pool.index.key(id), next_generation_ - 1);
  ++counters_.removed;
  return drop_object(pool, id, waiter);
}

Master::Result Master::settle(const Turn& turn, uint64_t waiter, uint32_t kills, uint32_t disks,
                              Answer answer) {
  if (kills == 0 && disks == 0) return answer;
  waiters_[waiter] = {turn.id, turn.ticket, kills, disks, std::move(answer)};
  if (kills > 0) expiries_.emplace_back(turn.now + options_.terms.location_ttl_ms, waiter);
  return std::nullopt;
}

void Master::tell(uint64_t waiter, bool disk) {
  const auto found = waiters_.find(waiter);
  if (found == waiters_.end()) return;
  uint32_t& left = disk ? found->second.disks : found->second.kills;
  if (left > 0) --left;
  if (found->second.kills > 0 || found->second.disks > 0) return;
  late_.push_back({found->second.peer, found->second.ticket, std::move(found->second.answer)});
  waiters_.erase(found);
}

Master::Result Master::answer(const Turn& turn, const Remove& question) {
  Remove::Answer answer;
  const uint64_t waiter = ++last_waiter_;
  uint32_t kills = 0;
  for (const std::string_view key : question.keys) {
    const ObjectId id = turn.pool.index.find(key);
    if (id == kNoObject) {
      // A lost node may have it, and come back.
      if (!key.empty() && key.size() <= kMaxKeyBytes) bury(turn.pool, key, next_generation_ - 1);
      answer.outcomes.push_back(missing(turn.pool, turn.now) == Presence::kUnknown
                                    ? Removed::kUnknown
                                    : Removed::kAbsent);
    } else if (!question.force && leased(turn.pool.index[id], turn.now)) {
      answer.outcomes.push_back(Removed::kLeased);
    } else {
      const bool lived = living(turn.pool, turn.pool.index[id]).count > 0;
      answer.outcomes.push_back(lived ? Removed::kRemoved : Removed::kAbsent);
      kills += remove_object(turn.pool, id, waiter);
    }
  }
  return settle(turn, waiter, kills, 0, std::move(answer));
}

Master::Result Master::answer(const Turn& turn, const RemoveGroup& question) {
  RemoveGroup::Answer answer;
  Pool& pool = turn.pool;
  const uint64_t waiter = ++last_waiter_;
  uint32_t kills = 0;
  for (const uint64_t group : question.groups)
    for (ObjectId id = pool.groups.first(group); id != kNoObject; id = pool.groups.first(group)) {
      kills += remove_object(pool, id, waiter);
      ++answer.removed;
    }
  return settle(turn, waiter, kills, 0, answer);
}

Master::Result Master::answer(const Turn& turn, const RemovePrefix& question) {
  RemovePrefix::Answer answer;
  Index& index = turn.pool.index;
  const uint64_t waiter = ++last_waiter_;
  uint32_t kills = 0;
  auto id = static_cast<ObjectId>(std::min<uint64_t>(question.cursor, index.end()));
  const ObjectId end = id + std::min(kSlice, index.end() - id);
  for (; id < end; ++id) {
    if (!index.used(id) || !index.key(id).starts_with(question.prefix)) continue;
    kills += remove_object(turn.pool, id, waiter);
    ++answer.removed;
  }
  answer.cursor = id < index.end() ? id : 0;
  return settle(turn, waiter, kills, 0, answer);
}

}  // namespace inlay::store
