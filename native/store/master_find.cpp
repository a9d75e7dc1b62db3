// What a master answers to who looks for objects.
#include <algorithm>
#include <cmath>

#include "master.h"

namespace inlay::store {

namespace {

constexpr uint64_t kNsPerMs = 1'000'000;
// How long a Locate waits for objects to come from a disk; its client asks again.
constexpr Millis kPromotionMs = 10'000;
// Of the memory, what one Locate has brought there.
constexpr uint64_t kPromotedShare = 4;

}  // namespace

Presence Master::missing(const Pool& pool, Millis now) const {
  return pool.advertising > 0 || recovering(now) ? Presence::kUnknown : Presence::kAbsent;
}

uint32_t Master::add_places(const Pool& pool, const Object& object,
                            std::vector<Place>& places) const {
  const Replicas replicas = living(pool, object);
  for (const Replica& replica : replicas) {
    const Segment& segment = *segments_[replica.segment];
    places.push_back({replica.segment, segment.ranges ? segment.ranges->at(replica.range).offset
                                                      : Place::kSomewhere});
  }
  return replicas.count;
}

Master::Result Master::answer(const Turn& turn, const Exists& question) {
  Exists::Answer answer;
  answer.presences.assign(question.keys.size(), missing(turn.pool, turn.now));
  std::vector<ObjectId> found(question.keys.size());
  turn.pool.index.find(question.keys, found);
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (found[i] == kNoObject) continue;
    const Object& object = turn.pool.index[found[i]];
    const bool lives = object.listed == 0 ? usable(*segments_[object.segment])
                                          : living(turn.pool, object).count > 0;
    if (!lives) continue;
    answer.presences[i] = Presence::kPresent;
    ++counters_.found;
  }
  counters_.exists += question.keys.size();
  return answer;
}

Locate::Found Master::locate(Pool& pool, ObjectId id, uint32_t lease_ms, Millis now,
                             std::vector<Place>& places) {
  Locate::Found found;
  if (id != kNoObject) {
    Object& object = pool.index[id];
    found.first_place = static_cast<uint32_t>(places.size());
    found.num_places = add_places(pool, object, places);
    // A node that is still to come may have a later one.
    const bool open = (object.flags & kMutable) != 0 && recovering(now);
    if (found.num_places > 0 && !open) {
      found.presence = Presence::kPresent;
      found.flags = object.flags;
      found.generation = object.generation;
      found.payload_bytes = object.payload_bytes();
      found.record_bytes = record_bytes(pool, id);
      if (lease_ms > 0)
        object.lease_end =
            std::max(object.lease_end,
                     lease_tick(now + std::min<Millis>(lease_ms, Locate::kMaxLeaseMs)) + 1);
      if (object.hits < kMaxHits) ++object.hits;
      ++counters_.located;
      return found;
    }
  }
  found.presence = missing(pool, now);
  ++counters_.missed;
  return found;
}

Master::Result Master::answer(const Turn& turn, const Locate& question) {
  Pool& pool = turn.pool;
  std::vector<ObjectId> ids(question.keys.size());
  pool.index.find(question.keys, ids);
  if (question.promote) {
    WaitingLocate waiting{
        turn.id, turn.ticket, &pool, {}, question.lease_ms, 0, turn.now + kPromotionMs};
    const uint64_t number = ++last_waiter_;
    uint64_t bytes = 0;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (ids[i] == kNoObject || pool.index[ids[i]].ranked != 0 || !is_on_disk_alone(pool, ids[i]))
        continue;
      // The first ones have to stay until all are read.
      bytes += record_bytes(pool, ids[i]);
      if (waiting.left > 0 && bytes > pool.total_bytes / kPromotedShare) break;
      auto& locates = promotions_[{&pool, std::string(question.keys[i])}];
      if (locates.empty())
        pool.promoting.push_back(
            {ids[i], pool.index[ids[i]].generation, std::string(question.keys[i])});
      locates.push_back(number);
      ++waiting.left;
    }
    if (waiting.left > 0) {
      waiting.keys.assign(question.keys.begin(), question.keys.end());
      waiting_locates_.emplace(number, std::move(waiting));
      start_promotions(pool, turn.now);
      make_room(pool, turn.now, kVictimsOfPromotion);
      return std::nullopt;
    }
  }
  Locate::Answer answer;
  answer.table_version = table_version_;
  answer.found.reserve(ids.size());
  for (const ObjectId id : ids)
    answer.found.push_back(locate(pool, id, question.lease_ms, turn.now, answer.places));
  touch(pool, ids, turn.now);
  return answer;
}

void Master::touch(Pool& pool, std::vector<ObjectId>& ids, Millis now) {
  std::erase_if(ids, [&](ObjectId id) { return id == kNoObject || pool.index[id].ranked == 0; });
  if (!ids.empty()) pool.policy->hit(ids, static_cast<uint64_t>(now) * kNsPerMs);
}

void Master::end_promotion(Pool& pool, std::string_view key, Millis now) {
  const auto found = promotions_.find({&pool, std::string(key)});
  if (found == promotions_.end()) return;
  const std::vector<uint64_t> locates = std::move(found->second);
  promotions_.erase(found);
  for (const uint64_t number : locates) end_locate(number, now);
}

void Master::end_locate(uint64_t number, Millis now) {
  const auto found = waiting_locates_.find(number);
  if (found == waiting_locates_.end() || --found->second.left > 0) return;
  const WaitingLocate waiting = std::move(found->second);
  waiting_locates_.erase(found);
  const Keys keys(waiting.keys.begin(), waiting.keys.end());
  std::vector<ObjectId> ids(keys.size());
  waiting.pool->index.find(keys, ids);
  Locate::Answer answer;
  answer.table_version = table_version_;
  for (const ObjectId id : ids)
    answer.found.push_back(locate(*waiting.pool, id, waiting.lease_ms, now, answer.places));
  late_.push_back({waiting.peer, waiting.ticket, std::move(answer)});
}

Master::Result Master::answer(const Turn& turn, const Table& question) {
  Table::Answer answer;
  answer.version = table_version_;
  answer.changed = question.known_version != table_version_;
  if (!answer.changed) return answer;
  for (const SegmentId id : turn.pool.segments) {
    const Segment& segment = *segments_[id];
    const Node& node = *nodes_[segment.node];
    answer.segments.push_back({id, segment.about.tier, segment.about.uuid, segment.about.bytes,
                               node.about.node, node.about.host, node.about.address,
                               segment.about.name, segment.about.file,
                               segment.state == Segment::State::kReady});
  }
  return answer;
}

Master::Result Master::answer(const Turn& turn, const Touch& question) {
  std::vector<ObjectId> ids(question.keys.size());
  turn.pool.index.find(question.keys, ids);
  for (const ObjectId id : ids)
    if (id != kNoObject && turn.pool.index[id].hits < kMaxHits) ++turn.pool.index[id].hits;
  touch(turn.pool, ids, turn.now);
  return std::nullopt;
}

Master::Result Master::answer(const Turn& turn, const Stat& question) {
  Pool& pool = turn.pool;
  Stat::Answer answer;
  answer.table_version = table_version_;
  for (const std::string_view key : question.keys) {
    Stat::Object& one = answer.objects.emplace_back();
    one.presence = missing(pool, turn.now);
    const ObjectId id = pool.index.find(key);
    if (id == kNoObject) continue;
    const Object& object = pool.index[id];
    one.first_place = static_cast<uint32_t>(answer.places.size());
    one.num_places = add_places(pool, object, answer.places);
    if (one.num_places == 0) continue;
    one.presence = Presence::kPresent;
    one.flags = object.flags;
    one.wanted_replicas = object.wanted;
    one.generation = object.generation;
    one.payload_bytes = object.payload_bytes();
    one.record_bytes = record_bytes(pool, id);
    one.group = object.grouped != 0 ? pool.groups.of(id) : 0;
    one.hits = object.hits;
    const uint32_t tick = lease_tick(turn.now);
    if (object.lease_end > tick)
      one.lease_left_ms = static_cast<uint32_t>((object.lease_end - tick) * kLeaseTickMs);
  }
  return answer;
}

Master::Result Master::answer(const Turn& turn, const List& question) {
  List::Answer answer;
  const Index& index = turn.pool.index;
  auto id = static_cast<ObjectId>(std::min<uint64_t>(question.cursor, index.end()));
  const ObjectId end = id + std::min(kSlice, index.end() - id);
  for (; id < end && answer.keys.size() < question.limit; ++id)
    if (index.used(id) && index.key(id).starts_with(question.prefix) &&
        living(turn.pool, index[id]).count > 0)
      answer.keys.emplace_back(index.key(id));
  answer.cursor = id < index.end() ? id : 0;
  return answer;
}

Master::Result Master::answer(const Turn& turn, const Changes& question) {
  ChangeLog& log = turn.pool.changes;
  if (question.hold_ms == 0 || log.news(question.after)) return log.since(question.after);
  held_changes_.push_back(
      {turn.id, turn.ticket, &turn.pool, question.after, turn.now + question.hold_ms});
  return std::nullopt;
}

void Master::tell_changes(Millis now) {
  std::erase_if(held_changes_, [&](const HeldChanges& held) {
    ChangeLog& log = held.pool->changes;
    if (held.until > now && !log.news(held.after)) return false;
    late_.push_back({held.peer, held.ticket, log.since(held.after)});
    return true;
  });
}

Master::Result Master::answer(const Turn& turn, const Survey&) {
  return survey(&turn.pool, turn.now);
}

Survey::Answer Master::survey(const Pool* only, Millis now) const {
  Survey::Answer answer;
  answer.epoch = options_.terms.epoch;
  answer.recovering = recovering(now);
  for (const auto& [name, pool] : pools_) {
    if (only != nullptr && only != pool.get()) continue;
    answer.objects += pool->index.size();
    answer.recovering |= pool->advertising > 0;
  }
  const Counters& c = counters_;
  answer.counters = {{"exists_keys", c.exists},
                     {"exists_found", c.found},
                     {"located", c.located},
                     {"missed", c.missed},
                     {"committed", c.committed},
                     {"kept", c.kept},
                     {"stale", c.stale},
                     {"refused", c.refused},
                     {"removed", c.removed},
                     {"evicted", c.evicted},
                     {"evicted_bytes", c.evicted_bytes},
                     {"demoted", c.demoted},
                     {"promoted", c.promoted},
                     {"copied", c.copied},
                     {"lost_replicas", c.lost_replicas},
                     {"lost_objects", c.lost_objects},
                     {"granted", c.granted},
                     {"full", c.full},
                     {"expired_waits", c.expired_waits},
                     {"advertised", c.advertised},
                     {"commands", c.commands},
                     {"dropped", c.dropped},
                     {"memory_bytes", memory_bytes()}};
  for (const auto& node : nodes_) {
    if (node == nullptr || node->left || (only != nullptr && node->pool != only)) continue;
    Survey::Node& one = answer.nodes.emplace_back();
    one.name = node->about.node;
    one.host = node->about.host;
    one.address = node->about.address;
    one.failure_domain = node->about.failure_domain;
    one.ready = node->alive;
    one.draining = node->draining;
    one.silent_ms = static_cast<uint64_t>(std::max<Millis>(now - node->heard, 0));
    for (const SegmentId id : node->segments) {
      const Segment& segment = *segments_[id];
      one.ready = one.ready && segment.state == Segment::State::kReady;
      if (segment.ranges) {
        one.memory_bytes += segment.ranges->bytes();
        one.memory_used_bytes += segment.ranges->used_bytes();
        one.fragmentation = std::max(one.fragmentation, segment.ranges->fragmentation());
      } else {
        one.disk_bytes += segment.about.bytes;
        one.disk_used_bytes += segment.disk_used;
      }
    }
  }
  return answer;
}

Master::Result Master::answer(const Turn& turn, const Explain& question) {
  Pool& pool = turn.pool;
  std::string text;
  const auto line = [&](const std::string& words) { text += words + "\n"; };
  const ObjectId id = pool.index.find(question.key);
  if (id == kNoObject) {
    line("no object has this key in tenant \"" + pool.tenant + "\"");
    if (missing(pool, turn.now) == Presence::kUnknown)
      line("nodes still tell what they hold: it may appear");
    if (const uint64_t buried = pool.burials.of(pool.index.hash_of(question.key)); buried > 0)
      line(
          "it was removed or replaced; nodes that come back with records of it, up to generation " +
          std::to_string(buried) + ", are told to drop them");
    else
      line("it was not removed since this master started: never put, evicted, or lost");
    return Explain::Answer{text};
  }
  const Object& object = pool.index[id];
  const uint64_t generation = object.generation;
  line("generation " + std::to_string(generation) + " (epoch " +
       std::to_string(epoch_of(generation)) + "), " + std::to_string(object.payload_bytes()) +
       " bytes, read " + std::to_string(object.hits) + (object.hits == kMaxHits ? "+" : "") +
       " times");
  line("replicas wanted: " + std::to_string(object.wanted));
  for (const Replica& replica : replicas_of(pool, object)) {
    const Segment& segment = *segments_[replica.segment];
    const Node& node = *nodes_[segment.node];
    std::string words = "  on node " + node.about.node + ", segment " + std::to_string(segment.id) +
                        (segment.about.tier == Tier::kDisk ? ", on its disk" : ", in memory");
    if (segment.ranges)
      words += " at " + std::to_string(segment.ranges->at(replica.range).offset) + ", " +
               std::to_string(segment.ranges->at(replica.range).bytes) + " bytes";
    if (segment.state == Segment::State::kLost) words += " (lost)";
    if (node.draining) words += " (the node is drained)";
    line(words);
  }
  if (object.grouped != 0) line("group " + std::to_string(pool.groups.of(id)));
  if ((object.flags & kHardPin) != 0) line("hard pin: it is not evicted");
  if ((object.flags & kSoftPin) != 0) line("soft pin: it is evicted when nothing else is left");
  if (leased(object, turn.now)) line("leased: it is not evicted now");
  if (object.busy != 0) line("it is being copied, demoted or promoted");
  line(object.ranked != 0 ? "it is evicted by policy " + options_.eviction
                          : "the eviction policy does not know it");
  line("memory used: " + std::to_string(pool.used_bytes) + " of " +
       std::to_string(pool.total_bytes) + " bytes, eviction from " +
       std::to_string(std::lround(options_.high_watermark * 100)) + " % on");
  return Explain::Answer{text};
}

}  // namespace inlay::store
