// Room for what is to be put: which segment, which ranges, and what goes for it.
#include <algorithm>
#include <cmath>

#include "grain.h"
#include "master.h"
#include "record.h"

namespace inlay::store {

namespace {

// Extents of one copy of a grant, where free room is in pieces.
constexpr std::size_t kMaxPieces = 8;
// A generation for each record of at least so many bytes, header and key included.
constexpr uint64_t kSmallRecord = 128;
constexpr uint64_t kMaxGenerations = 65536;
// Demotions of a node at a time.
constexpr std::size_t kMaxDemotions = 8;
// Between ranges that are cleared for one grant.
constexpr Millis kStuckMs = 50;
// Objects around which a long enough range is looked for at a time.
constexpr int kMaxWindows = 16;
// How much is cleared for one grant: a part of all memory, up to so much.
constexpr uint64_t kClearedPart = 256;
constexpr uint64_t kMostCleared = uint64_t{4} << 20;

}  // namespace

Segment* Master::choose(Pool& pool, const Grant& question, const std::vector<SegmentId>& taken,
                        Millis now) {
  // Of all that are allowed, one drawn by its free room: all fill up together, without the fullest
  // being asked by everybody at once. Whether the failure domain is taken decides before that.
  Segment* best = nullptr;
  double best_draw = 0;
  bool best_is_apart = false;
  for (const SegmentId id : pool.segments) {
    Segment& segment = *segments_[id];
    const Node& node = *nodes_[segment.node];
    if (!segment.ranges || segment.state != Segment::State::kReady || node.draining ||
        node.peer == 0)
      continue;
    if (std::ranges::find(question.avoid, id) != question.avoid.end()) continue;
    bool same_node = false;
    bool apart = true;
    for (const SegmentId other : taken) {
      const Node& holder = *nodes_[segments_[other]->node];
      same_node |= holder.id == node.id;
      apart &= holder.about.failure_domain != node.about.failure_domain;
    }
    if (same_node || (!apart && question.all_copies)) continue;
    if (segment.ranges->free_bytes() < question.least_bytes) continue;
    const bool preferred = taken.empty() && node.about.node == question.preferred_node;
    if (taken.empty() && question.require_preferred && !preferred) continue;
    if (preferred) return &segment;
    // A new node is empty: for its first seconds it gets a part of what its room would draw.
    const double age = static_cast<double>(now - segment.ready_since + 1) /
                       static_cast<double>(options_.ramp_up_ms + 1);
    const double weight =
        static_cast<double>(segment.ranges->free_bytes()) * std::clamp(age, 0.1, 1.0);
    // The first of exponential clocks whose rates are the weights.
    const double draw =
        -std::log(1 - std::uniform_real_distribution<double>(0, 1)(random_)) / weight;
    if (best != nullptr && (best_is_apart > apart || (best_is_apart == apart && best_draw < draw)))
      continue;
    best = &segment;
    best_draw = draw;
    best_is_apart = apart;
  }
  return best;
}

std::vector<OpenExtent> Master::allocate(Segment& segment, uint64_t bytes, uint64_t least,
                                         std::vector<Command>& opens) {
  std::vector<OpenExtent> extents;
  // Where the largest record of it may begin, so that the room of one that is gone is enough.
  const uint64_t alignment = least >= kLargePayload ? kLargeAlignment : kGrain;
  uint64_t left = bytes;
  uint64_t size = bytes;  // what is tried: where there is none so long, half of it
  while (extents.size() < kMaxPieces && left > 0) {
    const auto found = segment.ranges->allocate(size, alignment);
    if (!found) {
      if (size == least) break;
      size = std::max(least, grain_ceil(size / 2));
      continue;
    }
    OpenExtent extent;
    extent.segment = segment.id;
    extent.offset = found->range.offset;
    extent.bytes = found->range.bytes;
    while (extent.grant == 0) extent.grant = random_();
    extent.pieces.push_back({found->range.id, found->range.offset, found->range.bytes});
    extent.first_generation = next_generation_;
    next_generation_ += std::clamp<uint64_t>(found->range.bytes / kSmallRecord, 1, kMaxGenerations);
    segment.pool->used_bytes += found->range.bytes;
    Command open;
    open.kind = Command::Kind::kOpen;
    open.segment = segment.id;
    open.offset = found->range.offset;
    open.bytes = found->range.bytes;
    open.before = found->before;
    open.behind = found->behind;
    open.grant = extent.grant;
    open.first_generation = extent.first_generation;
    open.num_generations = static_cast<uint32_t>(next_generation_ - extent.first_generation);
    opens.push_back(std::move(open));
    left -= std::min(left, found->range.bytes);
    size = std::max(least, std::min(size, left));
    segment.extents.emplace(extent.offset, extent);
    extents.push_back(std::move(extent));
  }
  return extents;
}

bool Master::try_grant(const WaitingGrant& waiting, Millis now) {
  const auto peer = peers_.find(waiting.peer);
  if (peer == peers_.end()) return true;
  Pool& pool = *peer->second.pool;
  const Grant& question = waiting.question;
  std::vector<SegmentId> taken;
  std::vector<Command> opens;
  OpeningGrant opening{waiting.peer, waiting.ticket, 0, question, waiting.until, {}};
  Grant tried = question;
  while (taken.size() < question.copies) {
    Segment* const segment = choose(pool, tried, taken, now);
    if (segment == nullptr) break;
    const std::size_t before = opens.size();
    const auto extents = allocate(*segment, question.bytes, question.least_bytes, opens);
    if (extents.empty()) {
      tried.avoid.push_back(segment->id);
      continue;
    }
    for (std::size_t i = 0; i < extents.size(); ++i) {
      const Command& open = opens[before + i];
      opening.answer.extents.push_back({segment->id, static_cast<uint16_t>(taken.size()),
                                        open.offset, open.bytes, open.grant, open.first_generation,
                                        open.num_generations});
    }
    taken.push_back(segment->id);
  }
  const bool enough = !taken.empty() && (!question.all_copies || taken.size() == question.copies);
  const uint64_t number = ++last_waiter_;
  Client& client = clients_.at({&pool, peer->second.client});
  for (Command& open : opens) {
    Segment& segment = *segments_[open.segment];
    OpenExtent& extent = segment.extents.at(open.offset);
    if (!enough) {
      segment.ranges->free(extent.pieces[0].range);
      pool.used_bytes -= open.bytes;
      segment.extents.erase(open.offset);
      continue;
    }
    extent.client = peer->second.client;
    client.extents[open.grant] = {open.segment, open.offset};
    InFlight flight;
    flight.grant = number;
    flight.command = std::move(open);
    post(node_of(segment), std::move(flight));
    ++opening.left;
  }
  if (!enough) return false;
  opening.answer.table_version = table_version_;
  opening.answer.free_bytes = pool.total_bytes - pool.used_bytes;
  opening.answer.total_bytes = pool.total_bytes;
  opening_grants_.emplace(number, std::move(opening));
  return true;
}

void Master::end_open(const InFlight& flight, bool good, Millis now) {
  const auto found = opening_grants_.find(flight.grant);
  if (found == opening_grants_.end()) return;
  OpeningGrant& opening = found->second;
  if (!good) {
    std::erase_if(opening.answer.extents,
                  [&](const Extent& one) { return one.grant == flight.command.grant; });
    opening.question.avoid.push_back(flight.command.segment);
  }
  if (--opening.left > 0) return;
  OpeningGrant done = std::move(opening);
  opening_grants_.erase(found);
  if (!done.answer.extents.empty()) {
    ++counters_.granted;
    late_.push_back({done.peer, done.ticket, std::move(done.answer)});
    return;
  }
  // Its nodes went while they opened it: once more, elsewhere.
  waiting_grants_.push_back(
      {done.peer, done.ticket, std::move(done.question), std::max(done.until, now)});
}

void Master::retry_grants(Millis now) {
  room_changed_ = false;
  // In their order, a few at a time: who waits longest is served first.
  for (int i = 0; i < 16 && !waiting_grants_.empty(); ++i) {
    if (try_grant(waiting_grants_.front(), now)) {
      waiting_grants_.pop_front();
      continue;
    }
    if (waiting_grants_.front().until > now) break;
    const WaitingGrant over = std::move(waiting_grants_.front());
    waiting_grants_.pop_front();
    Grant::Answer answer;
    answer.table_version = table_version_;
    answer.room = Room::kFull;
    if (const auto peer = peers_.find(over.peer); peer != peers_.end()) {
      const Pool& pool = *peer->second.pool;
      answer.free_bytes = pool.total_bytes - pool.used_bytes;
      answer.total_bytes = pool.total_bytes;
    }
    ++counters_.full;
    late_.push_back({over.peer, over.ticket, std::move(answer)});
  }
  // Behind one that waits for much room others' time may be over, too.
  for (auto it = waiting_grants_.begin(); it != waiting_grants_.end();) {
    if (it->until > now) {
      ++it;
      continue;
    }
    Grant::Answer answer;
    answer.table_version = table_version_;
    answer.room = Room::kFull;
    ++counters_.full;
    late_.push_back({it->peer, it->ticket, std::move(answer)});
    it = waiting_grants_.erase(it);
  }
}

void Master::free_range(Segment& segment, RangeId range, uint64_t bytes) {
  segment.ranges->free(range);
  segment.pool->used_bytes -= bytes;
  room_changed_ = room_changed_ || !waiting_grants_.empty() || segment.pool->promoting_wants_room;
}

void Master::free_killed(Segment& segment, RangeId id) {
  const Range range = segment.ranges->at(id);
  const auto after = segment.extents.upper_bound(range.offset);
  if (after != segment.extents.begin()) {
    OpenExtent& extent = std::prev(after)->second;
    if (range.offset - extent.offset < extent.bytes) {
      extent.dead.push_back({id, range.offset, range.bytes});
      return;
    }
  }
  segment.pool->leaving_bytes -= range.bytes;
  free_range(segment, id, range.bytes);
}

void Master::close_extent(Segment& segment, uint64_t offset) {
  const auto found = segment.extents.find(offset);
  if (found == segment.extents.end() || found->second.closing) return;
  found->second.closing = true;
  InFlight flight;
  flight.command.kind = Command::Kind::kClose;
  flight.command.segment = segment.id;
  flight.command.offset = offset;
  flight.command.grant = found->second.grant;
  for (const OpenExtent::Piece& piece : found->second.pieces) {
    flight.command.ranges.push_back({piece.offset, piece.bytes});
    flight.freed.push_back(piece);
    segment.pool->leaving_bytes += piece.bytes;
  }
  post(node_of(segment), std::move(flight));
}

void Master::end_close(Segment& segment, const InFlight& flight) {
  const auto found = segment.extents.find(flight.command.offset);
  std::vector<OpenExtent::Piece> freed = flight.freed;
  freed.insert(freed.end(), found->second.dead.begin(), found->second.dead.end());
  segment.extents.erase(found);
  for (const OpenExtent::Piece& piece : freed) {
    segment.pool->leaving_bytes -= piece.bytes;
    free_range(segment, piece.range, piece.bytes);
  }
}

void Master::evict(Pool& pool, ObjectId id, Millis now) {
  Object& object = pool.index[id];
  const Replicas replicas = living(pool, object);
  const bool on_disk = std::ranges::any_of(
      replicas, [&](const Replica& one) { return !segments_[one.segment]->ranges; });
  Segment* memory = nullptr;
  Segment* disk = nullptr;
  for (const Replica& replica : replicas) {
    if (on_disk || disk != nullptr) break;
    memory = segments_[replica.segment].get();
    disk = disk_of(*memory);
  }
  if (object.grouped != 0)
    for (ObjectId other = pool.groups.first(pool.groups.of(id)); other != kNoObject;
         other = pool.groups.next(other))
      if (other != id && pool.index[other].busy == 0 && pool.index[other].ranked != 0)
        pool.doomed.emplace_back(other, pool.index[other].generation);
  unrank(pool, id, true);
  if (disk != nullptr && node_of(*disk).demotions < kMaxDemotions) {
    // It is read as before until the disk has it.
    object.busy = 1;
    uint64_t leaving = 0;
    for (const Replica& replica : replicas) leaving += range_bytes(replica);
    pool.leaving_bytes += leaving;
    add_demotion(*memory, *disk, {id, object.generation, leaving});
    return;
  }
  ++counters_.evicted;
  counters_.evicted_bytes += object.payload_bytes();
  let_go(pool, id, on_disk, now);
}

// From memory; of what is not on a disk, all.
void Master::let_go(Pool& pool, ObjectId id, bool on_disk, Millis now) {
  const uint64_t waiter = ++last_waiter_;
  const uint64_t hash = pool.index.hash(id);
  const Owed owed = on_disk ? drop_from_memory(pool, id, waiter) : drop_object(pool, id, waiter);
  mourn(pool, hash, waiter, owed, now);
}

Owed Master::drop_from_memory(Pool& pool, ObjectId id, uint64_t waiter) {
  Object& object = pool.index[id];
  Replicas kept;
  Owed owed;
  for (const Replica& replica : replicas_of(pool, object))
    if (segments_[replica.segment]->ranges && usable(*segments_[replica.segment]))
      owed += kill(pool, replica, object.generation, {}, waiter);
    else
      kept.add(replica);
  set_replicas(pool, id, kept);
  return owed;
}

Held Master::held_now(const Pool& pool, Millis now) const {
  return [this, &pool, now](ObjectId id) {
    const Object& object = pool.index[id];
    return object.busy != 0 || leased(object, now);
  };
}

// Where objects have several sizes, what is free may lie in pieces that are too short for a grant:
// then objects go that lie side by side, around the one that is worth least.
void Master::clear_ranges(Pool& pool, Millis now) {
  // What nodes still tell of may leave room enough.
  if (pool.advertising > 0) return;
  const Held held = held_now(pool, now);
  for (WaitingGrant& waiting : waiting_grants_) {
    const auto peer = peers_.find(waiting.peer);
    if (peer == peers_.end() || peer->second.pool != &pool || now < waiting.clear_from) continue;
    // What is cleared is free when its node has said so.
    waiting.clear_from = now + kStuckMs;
    // More than it needs: others of its size come behind it.
    const uint64_t least = waiting.question.least_bytes;
    const uint64_t bytes = std::max(least + (least >= kLargePayload ? kLargeAlignment : 0),
                                    std::min(pool.total_bytes / kClearedPart, kMostCleared));
    for (int tries = 0; tries < kMaxWindows; ++tries) {
      const ObjectId victim = pool.policy->victim(static_cast<uint64_t>(now) * 1'000'000, held);
      if (victim == kNoObject || clear_around(pool, victim, bytes, held, now)) break;
    }
  }
}

// False: too few of its neighbours may go; it went alone.
bool Master::clear_around(Pool& pool, ObjectId victim, uint64_t bytes, const Held& held,
                          Millis now) {
  std::vector<std::pair<ObjectId, uint64_t>> all{{victim, pool.index[victim].generation}};
  bool cleared = true;
  for (const Replica& replica : living(pool, pool.index[victim])) {
    if (!segments_[replica.segment]->ranges) continue;
    const RangeAllocator& ranges = *segments_[replica.segment]->ranges;
    const Range middle = ranges.at(replica.range);
    uint64_t length = middle.bytes;
    std::optional<Range> sides[] = {ranges.before(middle.id), ranges.behind(middle.id)};
    const auto may_go = [&](const std::optional<Range>& range) {
      if (!range) return false;
      if (range->free || ranges.owner(range->id) == kLeaving) return true;
      const ObjectId id = ranges.owner(range->id);
      return id < pool.index.end() && pool.index.used(id) && pool.index[id].ranked != 0 &&
             !held(id);
    };
    while (length < bytes) {
      // What costs nothing first.
      const bool may[] = {may_go(sides[0]), may_go(sides[1])};
      const int side = may[0] && (!may[1] || sides[0]->free) ? 0 : 1;
      if (!may[side]) break;
      const Range range = *sides[side];
      length += range.bytes;
      if (const ObjectId id = range.free ? kLeaving : ranges.owner(range.id); id != kLeaving)
        all.emplace_back(id, pool.index[id].generation);
      sides[side] = side == 0 ? ranges.before(range.id) : ranges.behind(range.id);
    }
    cleared &= length >= bytes;
  }
  if (!cleared) all.resize(1);
  for (const auto& [id, generation] : all)
    if (pool.index.used(id) && pool.index[id].generation == generation &&
        pool.index[id].ranked != 0)
      evict(pool, id, now);
  return cleared;
}

void Master::make_room(Pool& pool, Millis now, unsigned most) {
  const auto high =
      static_cast<uint64_t>(options_.high_watermark * static_cast<double>(pool.total_bytes));
  const auto low =
      static_cast<uint64_t>(options_.low_watermark * static_cast<double>(pool.total_bytes));
  const auto staying = [&] {
    return pool.used_bytes - std::min(pool.leaving_bytes, pool.used_bytes);
  };
  if (staying() > high) pool.evicting = true;
  end_fresh(pool, now);
  const Held held = held_now(pool, now);
  clear_ranges(pool, now);
  unsigned done = 0;
  while (done < most && !pool.doomed.empty()) {
    const auto [id, generation] = pool.doomed.front();
    pool.doomed.pop_front();
    ++done;
    if (id < pool.index.end() && pool.index.used(id) && pool.index[id].generation == generation &&
        pool.index[id].ranked != 0 && !held(id))
      evict(pool, id, now);
  }
  // What a node still tells of is used, but its memory is not counted before all is told.
  while (pool.evicting && pool.advertising == 0 && done < most) {
    if (staying() <= low) {
      pool.evicting = false;
      break;
    }
    // A disk that is slow holds eviction up only as long as nobody waits to put something.
    if (waiting_grants_.empty() && std::ranges::any_of(pool.segments, [&](SegmentId id) {
          return node_of(*segments_[id]).demotions >= kMaxDemotions;
        }))
      break;
    const ObjectId victim = pool.policy->victim(static_cast<uint64_t>(now) * 1'000'000, held);
    if (victim == kNoObject) break;
    evict(pool, victim, now);
    ++done;
  }
  if (pool.promoting_wants_room && pool.leaving_bytes == 0) evict_from(pool, pool.crowded, now);
  flush_demotions();
}

// For what comes from a node's disk the room of other nodes is of no use.
void Master::evict_from(Pool& pool, SegmentId segment, Millis now) {
  const Held held = [&](ObjectId id) {
    const Object& object = pool.index[id];
    return object.busy != 0 || leased(object, now) ||
           std::ranges::none_of(replicas_of(pool, object),
                                [&](const Replica& one) { return one.segment == segment; });
  };
  for (unsigned i = 0; i < kVictimsOfPromotion; ++i) {
    const ObjectId victim = pool.policy->victim(static_cast<uint64_t>(now) * 1'000'000, held);
    if (victim == kNoObject) break;
    evict(pool, victim, now);
  }
}

}  // namespace inlay::store
