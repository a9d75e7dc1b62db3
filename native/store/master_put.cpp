// How objects come to a master: grants, and commits of what was written under them.
#include <algorithm>
#include <utility>

#include "grain.h"
#include "master.h"

namespace inlay::store {

namespace {

// Victims that one commit looks for, so that its time is bounded; tick() does the rest.
constexpr unsigned kVictimsOfCommit = 8;

}  // namespace

Master::Result Master::answer(const Turn& turn, const Grant& question) {
  WaitingGrant waiting{turn.id, turn.ticket, question, turn.now + question.wait_ms};
  Grant& grant = waiting.question;
  grant.least_bytes = std::max<uint64_t>(grain_ceil(grant.least_bytes), kGrain);
  grant.bytes = std::max(grain_ceil(grant.bytes), grant.least_bytes);
  grant.copies = std::clamp<uint16_t>(grant.copies, 1, kMaxReplicas);
  Grant::Answer refusal;
  refusal.table_version = table_version_;
  refusal.free_bytes = turn.pool.total_bytes - turn.pool.used_bytes;
  refusal.total_bytes = turn.pool.total_bytes;
  std::vector<std::string_view> domains;
  bool preferred = grant.preferred_node.empty();
  bool large = false;
  for (const SegmentId id : turn.pool.segments) {
    const Segment& segment = *segments_[id];
    const Node& node = *nodes_[segment.node];
    if (!segment.ranges || segment.state == Segment::State::kLost || node.draining) continue;
    domains.push_back(node.about.failure_domain);
    preferred |= node.about.node == grant.preferred_node;
    large |= segment.about.bytes >= grant.least_bytes;
  }
  std::ranges::sort(domains);
  const auto [end, unused] = std::ranges::unique(domains);
  const auto num_domains = static_cast<std::size_t>(end - domains.begin());
  if (num_domains == 0 || (grant.all_copies && num_domains < grant.copies))
    refusal.room = Room::kNoNode;
  else if (!preferred && grant.require_preferred)
    refusal.room = Room::kUnknownNode;
  else if (!large)
    refusal.room = Room::kTooLarge;
  if (refusal.room != Room::kGranted) {
    // While nodes are still to come, none may be the right one.
    if (missing(turn.pool, turn.now) == Presence::kUnknown && question.wait_ms > 0) {
      waiting_grants_.push_back(std::move(waiting));
      return std::nullopt;
    }
    return refusal;
  }
  // Those who wait already go first, unless there is plenty.
  make_room(turn.pool, turn.now, kVictimsOfCommit);
  if (try_grant(waiting, turn.now)) return std::nullopt;
  if (question.wait_ms > 0) {
    waiting_grants_.push_back(std::move(waiting));
    clear_ranges(turn.pool, turn.now);
    flush_demotions();
    return std::nullopt;
  }
  ++counters_.full;
  refusal.room = Room::kFull;
  return refusal;
}

Master::Result Master::answer(const Turn& turn, const GiveBack& question) {
  Client& client = clients_.at({&turn.pool, turn.peer.client});
  for (const uint64_t grant : question.grants) {
    const auto found = client.extents.find(grant);
    if (found == client.extents.end()) continue;
    const auto [segment, offset] = found->second;
    client.extents.erase(found);
    close_extent(*segments_[segment], offset);
  }
  return GiveBack::Answer{};
}

std::optional<Replicas> Master::take_places(const Turn& turn, const Commit& question,
                                            const Commit::Entry& entry) {
  struct Taken {
    OpenExtent* extent;
    std::size_t piece;
    uint64_t offset;
  };
  std::array<Taken, kMaxReplicas> taken{};
  for (uint32_t i = 0; i < entry.num_places; ++i) {
    const Place& place = question.places[entry.first_place + i];
    if (place.segment >= segments_.size() || segments_[place.segment] == nullptr)
      return std::nullopt;
    Segment& segment = *segments_[place.segment];
    if (segment.pool != &turn.pool || segment.state != Segment::State::kReady) return std::nullopt;
    const auto after = segment.extents.upper_bound(place.offset);
    if (after == segment.extents.begin()) return std::nullopt;
    OpenExtent& extent = std::prev(after)->second;
    if (extent.client != turn.peer.client || extent.closing ||
        entry.generation < extent.first_generation)
      return std::nullopt;
    const auto piece = std::ranges::find_if(extent.pieces, [&](const OpenExtent::Piece& one) {
      return one.offset <= place.offset && place.offset - one.offset < one.bytes &&
             entry.record_bytes <= one.bytes - (place.offset - one.offset);
    });
    if (piece == extent.pieces.end()) return std::nullopt;
    for (uint32_t j = 0; j < i; ++j)
      if (taken[j].extent->segment == extent.segment) return std::nullopt;
    taken[i] = {&extent, static_cast<std::size_t>(piece - extent.pieces.begin()), place.offset};
  }
  Replicas replicas;
  for (uint32_t i = 0; i < entry.num_places; ++i) {
    OpenExtent& extent = *taken[i].extent;
    RangeAllocator& ranges = *segments_[extent.segment]->ranges;
    OpenExtent::Piece piece = extent.pieces[taken[i].piece];
    extent.pieces.erase(extent.pieces.begin() + static_cast<std::ptrdiff_t>(taken[i].piece));
    if (const uint64_t front = taken[i].offset - piece.offset; front > 0) {
      const RangeId rest = ranges.split(piece.range, front);
      extent.pieces.push_back({piece.range, piece.offset, front});
      piece = {rest, taken[i].offset, piece.bytes - front};
    }
    if (piece.bytes > entry.record_bytes) {
      const RangeId rest = ranges.split(piece.range, entry.record_bytes);
      extent.pieces.push_back(
          {rest, piece.offset + entry.record_bytes, piece.bytes - entry.record_bytes});
    }
    replicas.add({extent.segment, piece.range});
    if (!extent.pieces.empty()) continue;
    clients_.at({&turn.pool, turn.peer.client}).extents.erase(extent.grant);
    close_extent(*segments_[extent.segment], extent.offset);
  }
  return replicas;
}

// Whether a disk has it. Else it is on its way to one of its nodes', where there is one.
bool Master::is_on_disk(Pool& pool, ObjectId id, CommitWork& work) {
  const Replicas replicas = living(pool, pool.index[id]);
  Segment* from = nullptr;
  for (const Replica& replica : replicas) {
    Segment& segment = *segments_[replica.segment];
    if (!segment.ranges) return true;
    if (from == nullptr && disk_of(segment) != nullptr) from = &segment;
  }
  if (from == nullptr) return false;
  add_demotion(*from, *disk_of(*from),
               {id, pool.index[id].generation, 0, work.waiter,
                static_cast<uint32_t>(work.answer.results.size())});
  ++work.owed.disks;
  return false;
}

// The put was refused: none of its records may become an object, though a node that is cut off just
// now brings one back when there is no other any more.
void Master::refuse(Pool& pool, const std::optional<Replicas>& replicas,
                    const Commit::Entry& entry) {
  const uint64_t hash = pool.index.hash_of(entry.key);
  // Not all nodes are there that have it.
  if (!replicas) return pool.refusals.add(entry.generation, hash);
  for (const Replica& replica : *replicas) {
    kill(pool, replica, entry.generation, entry.key, 0);
    segments_[replica.segment]->killed.back().refused = hash;
  }
}

Commit::Result Master::commit(const Turn& turn, const Commit& question, const Commit::Entry& entry,
                              CommitWork& work) {
  using enum Committed;
  Pool& pool = turn.pool;
  if (entry.key.empty() || entry.key.size() > kMaxKeyBytes ||
      entry.payload_bytes > kMaxPayloadBytes || entry.record_bytes == 0 ||
      entry.record_bytes % kGrain != 0 || entry.record_bytes < entry.payload_bytes ||
      entry.num_places == 0 || entry.num_places > kMaxReplicas || entry.wanted_replicas == 0 ||
      entry.wanted_replicas > kMaxReplicas || entry.generation >= next_generation_) {
    ++counters_.refused;
    return {kInvalid, 0};
  }
  ObjectId id = pool.index.find(entry.key);
  if (id == kNoObject && missing(pool, turn.now) == Presence::kUnknown) return {kUnknown, 0};
  // It may be among them, and end here.
  if (id != kNoObject) rank(pool, std::exchange(work.newcomers, {}), turn.now);
  if (id != kNoObject && living(pool, pool.index[id]).count == 0) {
    // What was cached of it may be read for a while where its node was cut off from here only.
    work.owed += drop_object(pool, id, work.waiter);
    id = kNoObject;
  }
  const auto stale = [&] {
    ++counters_.stale;
    return Commit::Result{kStale, fresh_generation()};
  };
  if (id != kNoObject && pool.index[id].generation == entry.generation) {
    // Written under the last master, which may have committed a later one of the key before it:
    // generations are given when room is, not in the order of commits.
    if ((pool.index[id].flags & kMutable) != 0 &&
        epoch_of(entry.generation) < options_.terms.epoch) {
      if (entry.if_exists == IfExists::kReplace) return stale();
      if (missing(pool, turn.now) == Presence::kUnknown) return {kUnknown, 0};
    }
    return {kStored, entry.generation, entry.on_disk && is_on_disk(pool, id, work)};
  }
  if (entry.generation == 0) return stale();
  const bool refused = id != kNoObject && entry.if_exists != IfExists::kReplace;
  if (!refused && entry.generation <= floor_of(pool, entry.key)) return stale();
  if (id != kNoObject && !refused && pool.index[id].generation > entry.generation) return stale();
  const auto replicas = take_places(turn, question, entry);
  if (refused) {
    ++counters_.kept;
    refuse(pool, replicas, entry);
    const bool keeps = entry.if_exists == IfExists::kKeep;
    return {keeps ? kKept : kExists, pool.index[id].generation,
            keeps && entry.on_disk && is_on_disk(pool, id, work)};
  }
  if (!replicas) {
    ++counters_.refused;
    refuse(pool, replicas, entry);  // its client puts it again as another, which may be refused
    return {kClosed, 0};
  }
  work.owed += follow(pool, entry.key, work.waiter);
  if (id != kNoObject) {
    Object& object = pool.index[id];
    work.owed += kill_all(pool, id, work.waiter);
    unrank(pool, id, false);
    set_replicas(pool, id, *replicas);
    object.busy = 0;
  } else {
    // What never changes leaves no burial behind that would keep what it comes after away.
    if ((entry.flags & kMutable) == 0 && pool.burials.may_return(pool.index.hash_of(entry.key)))
      bury(pool, entry.key, entry.generation - 1);
    id = make_object(pool, entry.key, *replicas);
  }
  Object& object = pool.index[id];
  object.generation = entry.generation;
  object.set_payload_bytes(entry.payload_bytes);
  object.flags = entry.flags & 7;
  object.wanted = entry.wanted_replicas & 15;
  join_group(pool, id, entry.group);
  if (const auto one = newcomer(pool, id, entry.parent, entry.recompute_us))
    work.newcomers.push_back(*one);
  ++counters_.committed;
  if (replicas->count < entry.wanted_replicas) pool.thin.emplace_back(id, entry.generation);
  return {kStored, entry.generation, entry.on_disk && is_on_disk(pool, id, work)};
}

Master::Result Master::answer(const Turn& turn, const Commit& question) {
  CommitWork work{.waiter = ++last_waiter_};
  std::vector<Commit::Result>& results = work.answer.results;
  results.reserve(question.entries.size());
  const auto& entries = question.entries;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    if (i + Index::kAhead < entries.size()) turn.pool.index.expect(entries[i + Index::kAhead].key);
    const Commit::Result result = commit(turn, question, entries[i], work);
    results.push_back(result);
  }
  rank(turn.pool, work.newcomers, turn.now);
  flush_demotions();
  make_room(turn.pool, turn.now, kVictimsOfCommit + static_cast<unsigned>(results.size()));
  return settle(turn, work.waiter, work.owed, std::move(work.answer));
}

}  // namespace inlay::store
