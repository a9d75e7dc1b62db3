// Payload that nodes move for the master: to disks and back, and from node to node.
#include <algorithm>

#include "grain.h"
#include "master.h"

namespace inlay::store {

namespace {

// To one node at a time.
constexpr unsigned kMaxCopies = 8;
constexpr unsigned kMaxPromotions = 64;
// Objects in one demotion.
constexpr std::size_t kDemoteTogether = 64;
// So long what came from a disk stays for who waited for it, and no more than this part of the
// memory for that alone.
constexpr Millis kReadMs = 250;
constexpr uint64_t kFreshShare = 4;
// Repairs that one slice of a walk begins.
constexpr unsigned kRepairs = 32;

}  // namespace

// --- disks ---

Segment* Master::disk_of(const Segment& memory) {
  for (const SegmentId id : node_of(memory).segments)
    if (!segments_[id]->ranges && segments_[id]->state == Segment::State::kReady)
      return segments_[id].get();
  return nullptr;
}

void Master::demote(Segment& from, Segment& disk, std::vector<Demoted> objects) {
  Pool& pool = *from.pool;
  InFlight flight;
  flight.command.kind = Command::Kind::kDemote;
  flight.command.segment = from.id;
  flight.command.disk = disk.id;
  for (const Demoted& one : objects) {
    RecordRef ref{.generation = one.generation};
    for (const Replica& replica : replicas_of(pool, pool.index[one.id]))
      if (replica.segment == from.id) ref.offset = from.ranges->at(replica.range).offset;
    flight.command.records.push_back(ref);
    flight.command.keys.emplace_back(pool.index.key(one.id));
  }
  flight.demoted = std::move(objects);
  if (flight.demoted.front().waiter == 0) ++node_of(disk).demotions;
  post(node_of(disk), std::move(flight));
}

void Master::add_demotion(Segment& from, Segment& disk, const Demoted& object) {
  ++from.pool->demoting[object.generation].count;
  auto& batch = demotions_[{from.id, disk.id}];
  batch.push_back(object);
  if (batch.size() >= kDemoteTogether) flush_demotions();
}

void Master::flush_demotions() {
  for (auto& [segments, objects] : std::exchange(demotions_, {}))
    demote(*segments_[segments.first], *segments_[segments.second], std::move(objects));
}

void Master::end_demote(const InFlight& flight, const Done& done, Millis now) {
  Segment& disk = *segments_[flight.command.disk];
  Pool& pool = *disk.pool;
  std::vector<bool> missing(flight.demoted.size(), done.outcome != Done::Outcome::kDone);
  for (const uint32_t at : done.missing)
    if (at < missing.size()) missing[at] = true;
  for (std::size_t i = 0; i < flight.demoted.size(); ++i) {
    const Demoted& one = flight.demoted[i];
    pool.leaving_bytes -= one.leaving;
    const auto demoting = pool.demoting.find(one.generation);
    const uint64_t killer = demoting->second.waiter;
    if (--demoting->second.count == 0) pool.demoting.erase(demoting);
    const bool same = one.id < pool.index.end() && pool.index.used(one.id) &&
                      pool.index[one.id].generation == one.generation;
    if (same) {
      Object& object = pool.index[one.id];
      Replicas replicas = room_for_one(pool, object);
      const bool there = std::ranges::any_of(
          replicas, [&](const Replica& replica) { return replica.segment == disk.id; });
      if (!missing[i] && !there && replicas.count < kMaxReplicas && usable(disk)) {
        replicas.add({disk.id, static_cast<RangeId>(record_bytes(pool, one.id) / kGrain)});
        set_replicas(pool, one.id, replicas);
        ++counters_.demoted;
      }
      if (one.waiter == 0) {
        object.busy = 0;
        const bool on_disk = !missing[i] || there;
        if (!on_disk && leased(object, now)) {  // somebody came to read it meanwhile
          if (const auto again = newcomer(pool, one.id, {}, 0)) rank(pool, {&*again, 1}, now);
          continue;
        }
        ++counters_.evicted;
        counters_.evicted_bytes += object.payload_bytes();
        let_go(pool, one.id, on_disk, now);
      }
    } else if (!missing[i] && usable(disk)) {
      // It was replaced or removed while it was written.
      disk.kills.push_back({Place::kSomewhere, one.generation, true});
      disk.killed.push_back({0, 0, killer});
      disk.killed_keys.push_back(flight.command.keys[i]);
      dirty_.push_back(disk.node);
    } else {
      tell(killer, true);
    }
    if (const auto waiter = waiters_.find(one.waiter); waiter != waiters_.end()) {
      auto& answer = std::get<Commit::Answer>(waiter->second.answer);
      answer.results.at(one.result).on_disk = !missing[i];
      tell(one.waiter, true);
    }
  }
}

bool Master::is_on_disk_alone(const Pool& pool, ObjectId id) const {
  const Replicas replicas = living(pool, pool.index[id]);
  return replicas.count > 0 && !segments_[replicas.all[0].segment]->ranges;
}

// Begins to bring what is on disks alone to memory. False: not now.
bool Master::promote(Pool& pool, ObjectId id, Millis now) {
  const Object& object = pool.index[id];
  if (object.busy != 0) return false;
  for (const Replica& replica : living(pool, object)) {
    const Segment& disk = *segments_[replica.segment];
    const Node& node = node_of(disk);
    if (node.peer == 0 || node.promotions >= kMaxPromotions) continue;
    for (const SegmentId to : node.segments) {
      if (!segments_[to]->ranges) continue;
      Move move{Move::Kind::kPromote, &pool, id, object.generation, disk.id, to, 0, 0, false};
      if (start_move(move, record_bytes(pool, id), now)) return true;
      pool.promoting_wants_room = true;
      pool.crowded = to;
    }
  }
  return false;
}

void Master::start_promotions(Pool& pool, Millis now) {
  pool.promoting_wants_room = false;
  std::deque<Pool::Wanted> later;
  while (!pool.promoting.empty() && later.size() < kMaxPromotions) {
    Pool::Wanted one = std::move(pool.promoting.front());
    pool.promoting.pop_front();
    const bool same = one.id < pool.index.end() && pool.index.used(one.id) &&
                      pool.index[one.id].generation == one.generation;
    if (!same || !is_on_disk_alone(pool, one.id))
      end_promotion(pool, one.key, now);
    else if (!promote(pool, one.id, now))
      later.push_back(std::move(one));
  }
  pool.promoting.insert(pool.promoting.begin(), std::make_move_iterator(later.begin()),
                        std::make_move_iterator(later.end()));
}

void Master::keep_fresh(Pool& pool, ObjectId id, const Done& done, Millis now) {
  pool.fresh.push_back({id, pool.index[id].generation, record_bytes(pool, id), now + kReadMs,
                        done.parent, done.recompute_us});
  pool.fresh_bytes += pool.fresh.back().bytes;
  end_fresh(pool, now);
}

void Master::end_fresh(Pool& pool, Millis now) {
  while (!pool.fresh.empty() &&
         (pool.fresh.front().until <= now || pool.fresh_bytes > pool.total_bytes / kFreshShare)) {
    const Pool::Fresh one = std::move(pool.fresh.front());
    pool.fresh.pop_front();
    pool.fresh_bytes -= one.bytes;
    const bool same = one.id < pool.index.end() && pool.index.used(one.id) &&
                      pool.index[one.id].generation == one.generation;
    if (!same || living(pool, pool.index[one.id]).count == 0 || is_on_disk_alone(pool, one.id))
      continue;
    if (auto newcomer = this->newcomer(pool, one.id, one.parent, one.recompute_us)) {
      newcomer->wanted = true;
      rank(pool, {&*newcomer, 1}, now);
    }
  }
}

// --- between nodes ---

bool Master::copy(Pool& pool, ObjectId id, SegmentId leaving, Millis now) {
  const Object& object = pool.index[id];
  const Replicas replicas = living(pool, object);
  if (replicas.count == 0 || replicas.count == kMaxReplicas || object.busy != 0) return false;
  const Segment& source = *segments_[replicas.all[0].segment];
  if (!source.ranges) return false;
  Grant wanted;
  wanted.least_bytes = wanted.bytes = range_bytes(replicas.all[0]);
  std::vector<SegmentId> taken;
  for (const Replica& replica : replicas) taken.push_back(replica.segment);
  for (const SegmentId other : pool.segments)
    if (node_of(*segments_[other]).copies >= kMaxCopies) wanted.avoid.push_back(other);
  const Segment* const to = choose(pool, wanted, taken, now);
  if (to == nullptr) return false;
  Move move{Move::Kind::kCopy, &pool, id, object.generation, source.id, to->id, 0, 0, false};
  if (leaving < segments_.size()) {
    move.leaves = true;
    move.from = leaving;
    if (!segments_[leaving]->ranges) move.from = source.id;
  }
  return start_move(move, wanted.bytes, now);
}

bool Master::start_move(Move move, uint64_t bytes, Millis) {
  Segment& to = *segments_[move.to];
  Node& node = node_of(to);
  std::vector<Command> opens;
  if (to.state != Segment::State::kReady || allocate(to, bytes, bytes, opens).empty()) return false;
  Pool& pool = *move.pool;
  Object& object = pool.index[move.id];
  object.busy = 1;
  move.offset = opens[0].offset;
  move.grant = opens[0].grant;
  InFlight flight;
  flight.command.kind =
      move.kind == Move::Kind::kCopy ? Command::Kind::kCopy : Command::Kind::kPromote;
  flight.command.segment = to.id;
  flight.command.offset = move.offset;
  flight.command.bytes = opens[0].bytes;
  flight.command.grant = move.grant;
  flight.command.source_generation = move.generation;
  flight.command.keys.emplace_back(pool.index.key(move.id));
  if (move.kind == Move::Kind::kPromote) {
    flight.command.disk = move.from;
  } else {
    const Replica source = living(pool, object).all[0];
    flight.command.source = {source.segment,
                             segments_[source.segment]->ranges->at(source.range).offset};
  }
  flight.move = move;
  InFlight open;
  open.command = std::move(opens[0]);
  post(node, std::move(open));
  post(node, std::move(flight));
  ++(move.kind == Move::Kind::kCopy ? node.copies : node.promotions);
  return true;
}

void Master::end_move(const InFlight& flight, const Done& done, Millis now) {
  const Move& move = flight.move;
  const bool good = done.outcome == Done::Outcome::kDone;
  Pool& pool = *move.pool;
  Segment& to = *segments_[move.to];
  const bool same = move.id < pool.index.end() && pool.index.used(move.id) &&
                    pool.index[move.id].generation == move.generation;
  if (same) pool.index[move.id].busy = 0;
  const auto extent = to.extents.find(move.offset);
  if (usable(to) && extent != to.extents.end()) {
    if (good && !extent->second.pieces.empty()) {
      const Replica made{to.id, extent->second.pieces[0].range};
      extent->second.pieces.clear();
      Replicas replicas;
      if (same) replicas = room_for_one(pool, pool.index[move.id]);
      if (same && living(pool, pool.index[move.id]).count > 0 && replicas.count < kMaxReplicas) {
        replicas.add(made);
        set_replicas(pool, move.id, replicas);
        if (move.kind == Move::Kind::kPromote)
          keep_fresh(pool, move.id, done, now);
        else if (const auto one = newcomer(pool, move.id, done.parent, done.recompute_us))
          rank(pool, {&*one, 1}, now);
        ++(move.kind == Move::Kind::kCopy ? counters_.copied : counters_.promoted);
        if (move.leaves) leave_node(pool, move.id, segments_[move.from]->node, now);
      } else {
        kill(pool, made, move.generation, {}, move.waiter);
      }
    } else {
      tell(move.waiter, false);
    }
    close_extent(to, move.offset);
  }
  if (move.kind == Move::Kind::kCopy) return end_copy(move, good || !same, now);
  if (same && !good && !done.missing.empty() && usable(*segments_[move.from])) {
    ++counters_.dropped;
    kill(pool, {move.from, 0}, move.generation, flight.command.keys[0], 0);
    drop_replica(pool, move.id, move.from);
  }
  end_promotion(pool, flight.command.keys[0], now);
  start_promotions(pool, now);
  make_room(pool, now, kVictimsOfPromotion);
}

void Master::end_copy(const Move& move, bool good, Millis now) {
  if (segments_[move.from] == nullptr) return;
  Pause& pause = move.leaves ? node_of(*segments_[move.from]).drains : move.pool->repairs;
  if (good) return pause.end();
  pause.begin(now);
  if (!move.leaves) move.pool->thin.emplace_back(move.id, move.generation);
}

void Master::leave_node(Pool& pool, ObjectId id, uint32_t node, Millis now) {
  Object& object = pool.index[id];
  const uint64_t waiter = ++last_waiter_;
  Replicas kept;
  Owed owed;
  for (const Replica& replica : replicas_of(pool, object))
    if (segments_[replica.segment]->node != node)
      kept.add(replica);
    else
      owed += kill(pool, replica, object.generation, pool.index.key(id), waiter);
  set_replicas(pool, id, kept);
  mourn(pool, pool.index.hash(id), waiter, owed, now);
}

bool Master::repair(Millis now) {
  bool more = false;
  for (auto& [name, pool] : pools_) {
    if (!pool->repairs.over(now)) continue;
    const std::size_t count = std::min<std::size_t>(pool->thin.size(), kRepairs);
    for (std::size_t i = 0; i < count; ++i) {
      const auto [id, generation] = pool->thin.front();
      pool->thin.pop_front();
      if (id >= pool->index.end() || !pool->index.used(id) ||
          pool->index[id].generation != generation)
        continue;
      const Replicas replicas = living(*pool, pool->index[id]);
      const auto in_memory = std::ranges::count_if(
          replicas, [&](const Replica& one) { return segments_[one.segment]->ranges.has_value(); });
      if (in_memory == 0 || in_memory >= pool->index[id].wanted) continue;
      const bool busy = std::ranges::any_of(pool->segments, [&](SegmentId one) {
        return node_of(*segments_[one]).copies >= kMaxCopies;
      });
      const bool begun = copy(*pool, id, kNoSegment, now);
      // One more copy each time; with all nodes that could take one busy, later.
      if (begun ? in_memory + 1 < pool->index[id].wanted : busy || pool->index[id].busy != 0)
        pool->thin.emplace_back(id, generation);
      else if (!begun)
        pool->gave_up_copies = true;
    }
    more |= !pool->thin.empty();
  }
  return more;
}

Master::Result Master::answer(const Turn& turn, const Drain& question) {
  Drain::Answer answer;
  for (const auto& node : nodes_) {
    if (node == nullptr || !node->alive || node->pool != &turn.pool ||
        node->about.node != question.node)
      continue;
    answer.known = true;
    node->draining = true;
    for (const SegmentId id : node->segments) answer.objects_left += segments_[id]->objects;
    answer.objects_stuck = node->stuck;
    answer.done = answer.objects_left == 0;
  }
  return answer;
}

bool Master::drain(Node& node, Millis now) {
  Pool& pool = *node.pool;
  uint64_t left = 0;
  for (const SegmentId id : node.segments) left += segments_[id]->objects;
  if (left == 0 || !node.drains.over(now)) return false;
  ObjectId id = node.drain_cursor;
  const ObjectId end = id + std::min(kSlice, pool.index.end() - std::min(id, pool.index.end()));
  for (unsigned begun = 0; id < end && begun < kRepairs; ++id) {
    if (!pool.index.used(id) || pool.index[id].busy != 0) continue;
    const Replicas replicas = living(pool, pool.index[id]);
    SegmentId here = kNoSegment;
    bool here_in_memory = false;
    unsigned elsewhere = 0;
    bool cut_off = false;  // one that may be lost in a moment, or come back
    for (const Replica& replica : replicas) {
      const Segment& segment = *segments_[replica.segment];
      if (segment.node == node.id) {
        here = segment.id;
        here_in_memory |= segment.ranges.has_value();
      } else if (segment.ranges && !node_of(segment).draining) {
        const bool is_cut_off = node_of(segment).peer == 0;
        cut_off |= is_cut_off;
        elsewhere += is_cut_off ? 0 : 1;
      }
    }
    if (here == kNoSegment) continue;
    if (elsewhere >= pool.index[id].wanted) {
      leave_node(pool, id, node.id, now);
      continue;
    }
    if (cut_off) continue;
    ++begun;
    // What is on its disk alone comes to its memory first.
    const bool moves = here_in_memory ? copy(pool, id, here, now) : promote(pool, id, now);
    if (!moves) ++node.stuck_now;
  }
  node.drain_cursor = id;
  if (id >= pool.index.end()) {
    node.drain_cursor = 0;
    node.stuck = std::exchange(node.stuck_now, 0);
    // With nothing under way that could make room, only others can.
    const bool waits = std::ranges::none_of(pool.segments, [&](SegmentId one) {
      return node_of(*segments_[one]).copies > 0 || node_of(*segments_[one]).promotions > 0;
    });
    if (node.stuck > 0 && waits) node.drains.begin(now);
  }
  return true;
}

// --- what lost nodes leave behind ---

bool Master::sweep(Millis now) {
  if (!sweep_.running) {
    if (!sweep_.wanted) return false;
    // Until no location in a lost segment is cached, its objects are known here, so that what
    // replaces them waits.
    for (const auto& segment : segments_)
      if (segment != nullptr && segment->state == Segment::State::kLost &&
          now - segment->lost_since < options_.terms.location_ttl_ms)
        return false;
    sweep_ = {.wanted = false, .running = true, .started = now, .pool = {}, .next = 0};
  }
  const auto at = pools_.lower_bound(sweep_.pool);
  if (at == pools_.end()) {
    sweep_.running = false;
    for (const auto& segment : segments_) {
      if (segment == nullptr || segment->state != Segment::State::kLost || segment->forgotten ||
          segment->lost_since + options_.terms.location_ttl_ms > sweep_.started)
        continue;
      segment->forgotten = true;
      std::erase(segment->pool->segments, segment->id);
      resting_.emplace_back(segment->id, now + options_.terms.location_ttl_ms);
    }
    ++table_version_;
    return sweep_.wanted;
  }
  Pool& pool = *at->second;
  if (sweep_.pool != at->first) {
    sweep_.pool = at->first;
    sweep_.next = 0;
  }
  const ObjectId end = sweep_.next + std::min(kSlice, pool.index.end() - sweep_.next);
  for (ObjectId id = sweep_.next; id < end; ++id) {
    if (!pool.index.used(id)) continue;
    const Replicas before = replicas_of(pool, pool.index[id]);
    const Replicas left = living(pool, pool.index[id]);
    const auto in_memory = std::ranges::count_if(
        left, [&](const Replica& one) { return segments_[one.segment]->ranges.has_value(); });
    if (in_memory < pool.index[id].wanted && in_memory > 0)
      pool.thin.emplace_back(id, pool.index[id].generation);
    if (left.count == before.count) continue;
    counters_.lost_replicas += static_cast<uint64_t>(before.count - left.count);
    if (left.count == 0) {
      ++counters_.lost_objects;
      bury_if_mutable(pool, id, true);
      forget(pool, id);
      continue;
    }
    set_replicas(pool, id, left);
    if (in_memory == 0) unrank(pool, id, false);
  }
  sweep_.next = end;
  if (end == pool.index.end()) {
    sweep_.pool += '\0';
    sweep_.next = 0;
  }
  return true;
}

}  // namespace inlay::store
