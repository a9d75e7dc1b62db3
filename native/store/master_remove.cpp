// How objects leave a master, and the answers that wait until their records are dead.
#include <algorithm>

#include "master.h"

namespace inlay::store {

Owed Master::kill(Pool& pool, const Replica& replica, uint64_t generation, std::string_view key,
                  uint64_t waiter) {
  Segment& segment = *segments_[replica.segment];
  // Of a lost segment nothing is heard: only time ends what is cached of it.
  if (!usable(segment)) return {.kills = 1};
  if (segment.ranges) {
    const Range range = segment.ranges->at(replica.range);
    segment.kills.push_back({range.offset, generation, !key.empty()});
    segment.killed.push_back({replica.range, range.bytes, waiter});
    pool.leaving_bytes += range.bytes;
    segment.ranges->set_owner(replica.range, kLeaving);
  } else {
    segment.kills.push_back({Place::kSomewhere, generation, true});
    segment.killed.push_back({0, 0, waiter});
    segment.killed_keys.emplace_back(key);
  }
  dirty_.push_back(segment.node);
  // A disk's removal outlives the node: cached locations do not matter, it has to be written.
  return segment.ranges ? Owed{.kills = 1} : Owed{.disks = 1};
}

// What a move is making of the object, too: it may begin where a replica was located a moment ago.
Owed Master::kill_all(Pool& pool, ObjectId id, uint64_t waiter) {
  const Object& object = pool.index[id];
  const std::string_view key = pool.index.key(id);
  Owed owed;
  for (const Replica& replica : replicas_of(pool, object))
    owed += kill(pool, replica, object.generation, key, waiter);
  if (const auto demoting = pool.demoting.find(object.generation);
      demoting != pool.demoting.end()) {
    demoting->second.waiter = waiter;
    owed.disks += demoting->second.count;
  }
  if (object.busy == 0) return owed;
  for (const auto& node : nodes_) {
    if (node == nullptr || node->copies + node->promotions == 0) continue;
    for (auto& [command, flight] : node->in_flight) {
      Move& move = flight.move;
      if (move.pool != &pool || move.id != id || move.generation != object.generation) continue;
      move.waiter = waiter;
      ++owed.kills;
    }
  }
  return owed;
}

Owed Master::drop_object(Pool& pool, ObjectId id, uint64_t waiter) {
  const Owed owed = kill_all(pool, id, waiter);
  bury_if_mutable(pool, id, false);
  forget(pool, id);
  return owed;
}

// What was written before under that key is gone for good: also what was never committed, and comes
// back with a node that has it.
Owed Master::remove_object(Pool& pool, ObjectId id, uint64_t waiter) {
  bury(pool, pool.index.key(id), next_generation_ - 1);
  ++counters_.removed;
  return drop_object(pool, id, waiter);
}

Master::Result Master::settle(const Turn& turn, uint64_t waiter, Owed owed, Answer answer) {
  if (owed.nothing()) return answer;
  waiters_[waiter] = {turn.id, turn.ticket, owed, std::move(answer)};
  if (owed.kills > 0) expiries_.emplace_back(turn.now + options_.terms.location_ttl_ms, waiter);
  return std::nullopt;
}

void Master::tell(uint64_t waiter, bool disk) {
  const auto found = waiters_.find(waiter);
  if (found == waiters_.end()) return;
  uint32_t& left = disk ? found->second.owed.disks : found->second.owed.kills;
  if (left > 0) --left;
  if (found->second.owed.nothing()) end_wait(waiter);
}

void Master::end_wait(uint64_t waiter) {
  Waiter done = std::move(waiters_.extract(waiter).mapped());
  if (done.pool == nullptr) {
    late_.push_back({done.peer, done.ticket, std::move(done.answer)});
    return;
  }
  const auto [begin, end] = done.pool->dying.equal_range(done.hash);
  done.pool->dying.erase(
      std::find_if(begin, end, [&](const auto& one) { return one.second == waiter; }));
  for (const uint64_t follower : done.followers) tell(follower, false);
}

// Nobody asked for these deaths. Who replaces or removes what has that key meanwhile waits for
// them.
void Master::mourn(Pool& pool, uint64_t hash, uint64_t waiter, Owed owed, Millis now) {
  if (owed.nothing()) return;
  pool.dying.emplace(hash, waiter);
  waiters_[waiter] = {.owed = owed, .pool = &pool, .hash = hash};
  if (owed.kills > 0) expiries_.emplace_back(now + options_.terms.location_ttl_ms, waiter);
}

Owed Master::follow(Pool& pool, std::string_view key, uint64_t waiter) {
  Owed owed;
  if (pool.dying.empty()) return owed;
  const auto [begin, end] = pool.dying.equal_range(pool.index.hash_of(key));
  for (auto one = begin; one != end; ++one, ++owed.kills)
    waiters_.at(one->second).followers.push_back(waiter);
  return owed;
}

Master::Result Master::answer(const Turn& turn, const Remove& question) {
  Remove::Answer answer;
  const uint64_t waiter = ++last_waiter_;
  Owed owed;
  for (const std::string_view key : question.keys) {
    const ObjectId id = turn.pool.index.find(key);
    owed += follow(turn.pool, key, waiter);
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
      owed += remove_object(turn.pool, id, waiter);
    }
  }
  return settle(turn, waiter, owed, std::move(answer));
}

Master::Result Master::answer(const Turn& turn, const RemoveGroup& question) {
  RemoveGroup::Answer answer;
  Pool& pool = turn.pool;
  const uint64_t waiter = ++last_waiter_;
  Owed owed;
  for (const uint64_t group : question.groups)
    for (ObjectId id = pool.groups.first(group); id != kNoObject; id = pool.groups.first(group)) {
      owed += remove_object(pool, id, waiter);
      ++answer.removed;
    }
  return settle(turn, waiter, owed, answer);
}

Master::Result Master::answer(const Turn& turn, const RemovePrefix& question) {
  RemovePrefix::Answer answer;
  Index& index = turn.pool.index;
  const uint64_t waiter = ++last_waiter_;
  Owed owed;
  auto id = static_cast<ObjectId>(std::min<uint64_t>(question.cursor, index.end()));
  const ObjectId end = id + std::min(kSlice, index.end() - id);
  for (; id < end; ++id) {
    if (!index.used(id) || !index.key(id).starts_with(question.prefix)) continue;
    owed += remove_object(turn.pool, id, waiter);
    ++answer.removed;
  }
  answer.cursor = id < index.end() ? id : 0;
  return settle(turn, waiter, owed, answer);
}

}  // namespace inlay::store
