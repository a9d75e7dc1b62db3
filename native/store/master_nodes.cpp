// Nodes: how they join, what they hold, what they are told to do, and how they are lost.
#include <algorithm>

#include "master.h"

namespace inlay::store {

namespace {

constexpr std::size_t kMaxSegments = 65535;
// In one answer to a Beat, and records of one kKill.
constexpr std::size_t kMaxCommands = 256;
constexpr std::size_t kMaxKills = 2048;

}  // namespace

Master::Result Master::answer(const Turn& turn, const Join& question) {
  using enum Join::Outcome;
  Join::Answer answer;
  answer.epoch = options_.terms.epoch;
  answer.beat_ms = options_.beat_ms;
  // What was removed while the last master reigned is on the disks of the nodes that it knew at
  // its end.
  const bool was_known =
      std::ranges::find(options_.expected_nodes, question.node) != options_.expected_nodes.end();
  answer.oldest_tombstone_epoch = options_.terms.epoch - (was_known ? 1 : 0);
  const auto refuse = [&](Join::Outcome why) {
    answer.outcome = why;
    return answer;
  };
  if (question.epoch_seen > options_.terms.epoch) return refuse(kOldEpoch);
  for (const Join::Segment& one : question.segments)
    if (one.tier == Tier::kMemory &&
        (one.bytes == 0 || one.bytes % kGrain != 0 || one.bytes > RangeAllocator::kMaxBytes))
      return refuse(kInvalid);
  Node* known = nullptr;
  for (const auto& node : nodes_) {
    if (node == nullptr || !node->alive) continue;
    if (node->pool == &turn.pool && node->about.node == question.node) {
      known = node.get();
      continue;
    }
    for (const SegmentId id : node->segments)
      for (const Join::Segment& one : question.segments)
        if (segments_[id]->about.uuid == one.uuid) return refuse(kDuplicateSegment);
  }
  if (known != nullptr && known->peer != 0 && known->peer != turn.id) return refuse(kNameTaken);
  if (segments_.size() + question.segments.size() > kMaxSegments) return refuse(kTooMany);
  if (known != nullptr && question.resumes &&
      std::ranges::equal(
          known->segments, question.segments, {},
          [&](SegmentId id) { return segments_[id]->about.uuid; }, &Join::Segment::uuid)) {
    known->peer = turn.id;
    known->heard = turn.now;
    known->about.address = question.address;
    known->queue.clear();
    for (const auto& [id, flight] : known->in_flight) known->queue.push_back(id);
    turn.peer.node = known->id;
    answer.ids = known->segments;
    ++table_version_;
    return answer;
  }
  if (question.resumes) return refuse(kNotKnown);
  if (known != nullptr) lose(*known, turn.now);
  const auto free = std::ranges::find_if(nodes_, [](const auto& one) { return one == nullptr; });
  const auto id = static_cast<uint32_t>(free - nodes_.begin());
  if (free == nodes_.end()) nodes_.emplace_back();
  nodes_[id] = std::make_unique<Node>();
  Node& node = *nodes_[id];
  node.id = id;
  node.about = question;
  if (node.about.failure_domain.empty()) node.about.failure_domain = question.host;
  node.pool = &turn.pool;
  node.peer = turn.id;
  node.heard = turn.now;
  turn.peer.node = id;
  for (const Join::Segment& one : question.segments) make_segment(node, one, turn.now);
  answer.ids = node.segments;
  ++table_version_;
  return answer;
}

void Master::make_segment(Node& node, const Join::Segment& about, Millis now) {
  const auto free = std::ranges::find_if(segments_, [](const auto& one) { return one == nullptr; });
  const auto id = static_cast<SegmentId>(free - segments_.begin());
  if (free == segments_.end()) segments_.emplace_back();
  segments_[id] = std::make_unique<Segment>();
  Segment& segment = *segments_[id];
  segment.id = id;
  segment.about = about;
  segment.node = node.id;
  segment.pool = node.pool;
  segment.state = Segment::State::kAdvertising;
  if (about.tier == Tier::kMemory) segment.ranges.emplace(about.bytes);
  node.segments.push_back(id);
  node.pool->segments.push_back(id);
  ++node.pool->advertising;
  if (!about.advertises) make_ready(segment, now);
}

void Master::make_ready(Segment& segment, Millis now) {
  segment.state = Segment::State::kReady;
  segment.ready_since = now;
  Pool& pool = *segment.pool;
  if (--pool.advertising == 0) rank_orphans(pool, now);
  if (segment.ranges) pool.total_bytes += segment.ranges->bytes();
  if (std::exchange(pool.gave_up_copies, false)) sweep_.wanted = true;
  room_changed_ = true;
  ++table_version_;
}

Master::Result Master::answer(const Turn& turn, const Advertise& question) {
  Node* const node = turn.peer.node ? nodes_[*turn.peer.node].get() : nullptr;
  if (node == nullptr || !node->alive ||
      std::ranges::find(node->segments, question.segment) == node->segments.end())
    return Advertise::Answer{false};
  node->heard = turn.now;
  Segment& segment = *segments_[question.segment];
  if (segment.state != Segment::State::kAdvertising) return Advertise::Answer{true};
  const auto& records = question.records;
  for (std::size_t i = 0; i < records.size(); ++i) {
    if (i + Index::kAhead < records.size()) turn.pool.index.expect(records[i + Index::kAhead].key);
    advertise(segment, records[i], turn.now);
  }
  counters_.advertised += records.size();
  if (question.last) make_ready(segment, turn.now);
  dirty_.push_back(node->id);
  return Advertise::Answer{true};
}

void Master::advertise(Segment& segment, const Advertise::Record& record, Millis now) {
  Pool& pool = *segment.pool;
  if (record.key.size() > kMaxKeyBytes || record.payload_bytes > kMaxPayloadBytes) return;
  Replica replica{segment.id, static_cast<RangeId>(record.record_bytes / kGrain)};
  if (segment.ranges) {
    if (record.offset > segment.ranges->bytes() ||
        record.record_bytes > segment.ranges->bytes() - record.offset || record.record_bytes == 0 ||
        record.offset % kGrain != 0 || record.record_bytes % kGrain != 0)
      return;
    const auto taken = segment.ranges->take(record.offset, record.record_bytes);
    if (!taken) return;  // over another record: one of them is damaged
    replica.range = taken->range.id;
    pool.used_bytes += taken->range.bytes;
  }
  if (record.key.empty()) {
    if (!segment.ranges) return;
    pool.leaving_bytes += segment.ranges->at(replica.range).bytes;
    segment.pinned[record.offset] = replica.range;
    return;
  }
  ObjectId id = pool.index.find(record.key);
  const auto refuse = [&] { kill(pool, replica, record.generation, record.key, 0); };
  if (epoch_of(record.generation) > options_.terms.epoch) return refuse();
  if (id == kNoObject) {
    const uint64_t hash = pool.index.hash_of(record.key);
    if (record.generation <= pool.burials.of(hash) ||
        pool.refusals.contains(record.generation, hash))
      return refuse();
    Replicas one;
    one.add(replica);
    id = make_object(pool, record.key, one);
  } else {
    Object& object = pool.index[id];
    const bool same = object.generation == record.generation;
    if (!same && !supersedes(record, object)) return refuse();
    Replicas replicas;
    if (same) {
      replicas = room_for_one(pool, object);
      if (replicas.count == kMaxReplicas || std::ranges::any_of(replicas, [&](const Replica& one) {
            return one.segment == segment.id;
          }))
        return refuse();
    } else {
      for (const Replica& old : replicas_of(pool, object))
        kill(pool, old, object.generation, record.key, 0);
      unrank(pool, id, false);
      object.busy = 0;
    }
    replicas.add(replica);
    set_replicas(pool, id, replicas);
  }
  Object& object = pool.index[id];
  object.generation = record.generation;
  object.set_payload_bytes(record.payload_bytes);
  object.flags = record.flags & 7;
  object.wanted = std::clamp<uint16_t>(record.wanted_replicas, 1, kMaxReplicas) & 15;
  join_group(pool, id, record.group);
  if (segment.ranges)
    rank_advertised(pool, id, record, now);
  else if (is_on_disk_alone(pool, id))  // what it had in memory is lost
    unrank(pool, id, false);
}

// Of two records of a key, one of which a node has just told of. What was committed in this epoch
// is known. Before it, the first of those that never change was kept when the others came, and of
// those that do the last is what readers have seen.
bool Master::supersedes(const Advertise::Record& record, const Object& known) const {
  if (((record.flags | known.flags) & kMutable) == 0)
    return record.generation < known.generation &&
           epoch_of(known.generation) < options_.terms.epoch;
  return record.generation > known.generation && epoch_of(record.generation) < options_.terms.epoch;
}

Master::Result Master::answer(const Turn& turn, const Beat& question) {
  Node* const node = turn.peer.node ? nodes_[*turn.peer.node].get() : nullptr;
  if (node == nullptr || !node->alive || node->peer != turn.id) return Beat::Answer{false, {}};
  node->heard = turn.now;
  for (const Done& done : question.done) take_done(*node, done, turn.now);
  const auto own = [&](SegmentId id) -> Segment* {
    const bool is = std::ranges::find(node->segments, id) != node->segments.end();
    return is ? segments_[id].get() : nullptr;
  };
  for (const Place& place : question.released) {
    Segment* const segment = own(place.segment);
    const auto found = segment == nullptr ? decltype(segment->pinned)::iterator{}
                                          : segment->pinned.find(place.offset);
    if (segment == nullptr || found == segment->pinned.end()) continue;
    const RangeId range = found->second;
    segment->pinned.erase(found);
    free_killed(*segment, range);
  }
  for (const Beat::Disk& disk : question.disks) {
    Segment* const segment = own(disk.segment);
    if (segment == nullptr || segment->ranges) continue;
    segment->disk_used = disk.used_bytes;
    for (const auto& dropped : disk.dropped) {
      const ObjectId id = segment->pool->index.find(dropped.key);
      if (id != kNoObject && segment->pool->index[id].generation == dropped.generation)
        drop_replica(*segment->pool, id, segment->id);
    }
    counters_.dropped += disk.dropped.size();
  }
  if (question.hold_ms == 0) return Beat::Answer{};
  if (node->beat) late_.push_back({node->beat->peer, node->beat->ticket, Beat::Answer{}});
  node->beat = {turn.id, turn.ticket,
                turn.now + std::min<Millis>(question.hold_ms, options_.beat_ms)};
  dirty_.push_back(node->id);
  return std::nullopt;
}

void Master::drop_replica(Pool& pool, ObjectId id, SegmentId segment) {
  Replicas kept;
  for (const Replica& replica : replicas_of(pool, pool.index[id]))
    if (replica.segment != segment) kept.add(replica);
  if (kept.count > 0) {
    set_replicas(pool, id, kept);
    return;
  }
  bury_if_mutable(pool, id, false);
  forget(pool, id);
}

void Master::post(Node& node, InFlight flight) {
  flight.command.id = ++last_command_;
  node.queue.push_back(flight.command.id);
  node.in_flight.emplace(flight.command.id, std::move(flight));
  dirty_.push_back(node.id);
  ++counters_.commands;
}

void Master::flush(Node& node) {
  if (!node.alive || !node.beat) return;
  for (const SegmentId id : node.segments) {
    Segment& segment = *segments_[id];
    for (std::size_t begin = 0; begin < segment.kills.size(); begin += kMaxKills) {
      const auto from = static_cast<std::ptrdiff_t>(begin);
      const auto to =
          static_cast<std::ptrdiff_t>(std::min(begin + kMaxKills, segment.kills.size()));
      InFlight flight;
      flight.command.kind = Command::Kind::kKill;
      flight.command.segment = id;
      flight.command.records.assign(segment.kills.begin() + from, segment.kills.begin() + to);
      flight.killed.assign(segment.killed.begin() + from, segment.killed.begin() + to);
      if (!segment.ranges)
        flight.command.keys.assign(segment.killed_keys.begin() + from,
                                   segment.killed_keys.begin() + to);
      post(node, std::move(flight));
    }
    segment.kills.clear();
    segment.killed.clear();
    segment.killed_keys.clear();
  }
  if (node.queue.empty()) return;
  Beat::Answer answer;
  const std::size_t count = std::min(node.queue.size(), kMaxCommands);
  for (std::size_t i = 0; i < count; ++i)
    // After a connection was lost a Done may come for what is to be given again.
    if (const auto found = node.in_flight.find(node.queue[i]); found != node.in_flight.end())
      answer.commands.push_back(found->second.command);
  node.queue.erase(node.queue.begin(), node.queue.begin() + static_cast<std::ptrdiff_t>(count));
  if (answer.commands.empty()) return;
  late_.push_back({node.beat->peer, node.beat->ticket, std::move(answer)});
  node.beat.reset();
}

void Master::take_done(Node& node, const Done& done, Millis now) {
  const auto found = node.in_flight.find(done.command);
  if (found == node.in_flight.end()) return;
  const InFlight flight = std::move(found->second);
  node.in_flight.erase(found);
  end_flight(node, flight, done, now);
}

void Master::end_flight(Node& node, const InFlight& flight, const Done& done, Millis now) {
  using enum Command::Kind;
  const bool good = done.outcome == Done::Outcome::kDone;
  switch (flight.command.kind) {
    case kOpen:
      return end_open(flight, good, now);
    case kClose:
      return end_close(*segments_[flight.command.segment], flight);
    case kKill:
      return end_kill(flight, done);
    case kCopy:
      --node.copies;
      return end_move(flight, done, now);
    case kPromote:
      --node.promotions;
      return end_move(flight, done, now);
    case kDemote:
      if (flight.demoted.front().waiter == 0) --node.demotions;
      return end_demote(flight, done, now);
  }
}

void Master::end_kill(const InFlight& flight, const Done& done) {
  Segment& segment = *segments_[flight.command.segment];
  std::vector<bool> pinned(flight.killed.size());
  for (const uint32_t at : done.pinned)
    if (at < pinned.size()) pinned[at] = true;
  for (std::size_t i = 0; i < flight.killed.size(); ++i) {
    const Segment::Killed& one = flight.killed[i];
    if (one.waiter != 0) tell(one.waiter, !segment.ranges);
    if (!segment.ranges) continue;
    if (pinned[i]) {
      segment.pinned[flight.command.records[i].offset] = one.range;
      continue;
    }
    free_killed(segment, one.range);
  }
}

// That nobody confirms. In memory they leave their waiters to the expiry of cached locations; the
// node drops what is on its disk and may have changed when it comes back to a later master.
void Master::forget_kills(const Segment& segment, const std::vector<RecordRef>& records,
                          const std::vector<Segment::Killed>& kills) {
  for (std::size_t i = 0; i < kills.size(); ++i) {
    const Segment::Killed& one = kills[i];
    if (one.refused != 0) segment.pool->refusals.add(records[i].generation, one.refused);
    segment.pool->leaving_bytes -= one.bytes;
    if (one.waiter != 0 && !segment.ranges) tell(one.waiter, true);
  }
}

void Master::lose(Node& node, Millis now) {
  Pool& pool = *node.pool;
  if (node.beat) late_.push_back({node.beat->peer, node.beat->ticket, Beat::Answer{false, {}}});
  node.beat.reset();
  node.alive = false;
  node.peer = 0;
  node.queue.clear();
  // First, so that nothing below chooses one of them.
  for (const SegmentId id : node.segments) {
    Segment& segment = *segments_[id];
    if (segment.state == Segment::State::kAdvertising) --pool.advertising;
    if (segment.ranges && segment.state == Segment::State::kReady)
      pool.total_bytes -= segment.ranges->bytes();
    segment.state = Segment::State::kLost;
    segment.lost_since = now;
  }
  if (pool.advertising == 0) rank_orphans(pool, now);
  for (const auto& [id, flight] : std::exchange(node.in_flight, {})) {
    if (flight.command.kind == Command::Kind::kKill)
      forget_kills(*segments_[flight.command.segment], flight.command.records, flight.killed);
    else if (flight.command.kind == Command::Kind::kClose)
      for (const auto& piece : flight.freed) pool.leaving_bytes -= piece.bytes;
    else
      end_flight(node, flight, {.outcome = Done::Outcome::kFailed}, now);
  }
  for (const SegmentId id : node.segments) {
    Segment& segment = *segments_[id];
    forget_kills(segment, segment.kills, segment.killed);
    segment.kills.clear();
    segment.killed.clear();
    segment.killed_keys.clear();
    for (const auto& [offset, range] : segment.pinned)
      pool.leaving_bytes -= segment.ranges->at(range).bytes;
    segment.pinned.clear();
    for (const auto& [offset, extent] : segment.extents) {
      for (const auto& piece : extent.dead) pool.leaving_bytes -= piece.bytes;
      if (const auto client = clients_.find({&pool, extent.client}); client != clients_.end())
        client->second.extents.erase(extent.grant);
    }
    segment.extents.clear();
    if (segment.ranges) pool.used_bytes -= segment.ranges->used_bytes();
  }
  ++table_version_;
  sweep_.wanted = true;
}

Master::Result Master::answer(const Turn& turn, const Leave&) {
  if (turn.peer.node && nodes_[*turn.peer.node] != nullptr && nodes_[*turn.peer.node]->alive) {
    nodes_[*turn.peer.node]->left = true;
    lose(*nodes_[*turn.peer.node], turn.now);
  }
  turn.peer.node.reset();
  return Leave::Answer{};
}

}  // namespace inlay::store
