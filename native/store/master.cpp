#include "master.h"

#include <algorithm>
#include <utility>

#include "../core/errors.h"
#include "grain.h"

namespace inlay::store {

namespace {

// Ticks are 50 ms apart, unless the process got no time.
constexpr Millis kStall = 500;

}  // namespace

Master::Master(MasterOptions options, Millis now)
    : options_(std::move(options)),
      start_(now),
      ticked_(now),
      random_(options_.seed),
      next_generation_(first_generation_of(options_.terms.epoch) + 1),
      table_version_(first_generation_of(options_.terms.epoch) + 1),
      last_command_(first_generation_of(options_.terms.epoch)) {
  const auto refuse = [](const std::string& text) {
    throw ArgumentError("MasterOptions: " + text);
  };
  if (options_.terms.epoch == 0 || options_.terms.epoch >= 1U << 24)
    refuse("epoch is " + std::to_string(options_.terms.epoch) + ", and has to be 1 to 2^24 - 1");
  if (!(options_.low_watermark > 0 && options_.low_watermark <= options_.high_watermark &&
        options_.high_watermark <= 1))
    refuse("0 < low_watermark <= high_watermark <= 1 has to hold, and they are " +
           std::to_string(options_.low_watermark) + " and " +
           std::to_string(options_.high_watermark));
  if (make_eviction_policy(options_.eviction) == nullptr)
    refuse("no eviction policy is called \"" + options_.eviction + "\"");
  if (options_.beat_ms == 0 || options_.beat_ms * 2 > options_.terms.node_timeout_ms)
    refuse("beat_ms is " + std::to_string(options_.beat_ms) +
           ", and has to be 1 to half of node_timeout_ms, which is " +
           std::to_string(options_.terms.node_timeout_ms));
  recovered_ = options_.expected_nodes.empty();
}

PeerId Master::connect(const std::string& tenant, const Uuid& client, Millis) {
  auto& pool = pools_[tenant];
  if (pool == nullptr) {
    const KeyHash hash(random_(), random_());
    pool = std::make_unique<Pool>(tenant, hash, make_eviction_policy(options_.eviction),
                                  first_generation_of(options_.terms.epoch));
  }
  const PeerId id = ++last_peer_;
  peers_[id] = {pool.get(), client, std::nullopt};
  Client& one = clients_[{pool.get(), client}];
  one.pool = pool.get();
  ++one.connections;
  return id;
}

void Master::disconnect(PeerId id, Millis now) {
  const auto found = peers_.find(id);
  if (found == peers_.end()) return;
  const Peer peer = found->second;
  peers_.erase(found);
  const auto client = clients_.find({peer.pool, peer.client});
  if (--client->second.connections == 0) client->second.gone_since = now;
  if (peer.node && nodes_[*peer.node] != nullptr && nodes_[*peer.node]->peer == id) {
    nodes_[*peer.node]->peer = 0;
    nodes_[*peer.node]->beat.reset();
  }
  std::erase_if(waiting_grants_, [&](const WaitingGrant& one) { return one.peer == id; });
  std::erase_if(held_changes_, [&](const HeldChanges& one) { return one.peer == id; });
}

std::optional<Answer> Master::handle(PeerId id, uint64_t ticket, const Question& question,
                                     Millis now) {
  const auto found = peers_.find(id);
  if (found == peers_.end()) return std::nullopt;
  const Turn turn{found->second, id, ticket, *found->second.pool, now};
  Result result = std::visit([&](const auto& one) { return answer(turn, one); }, question);
  if (room_changed_) {
    retry_grants(now);
    start_promotions(*found->second.pool, now);
    if (found->second.pool->promoting_wants_room)
      make_room(*found->second.pool, now, kVictimsOfPromotion);
  }
  for (const uint32_t node : std::exchange(dirty_, {}))
    if (nodes_[node] != nullptr) flush(*nodes_[node]);
  tell_changes(now);
  return result;
}

std::vector<Master::Late> Master::take_answers() { return std::exchange(late_, {}); }

Millis Master::tick(Millis now) {
  constexpr unsigned kVictims = 256;
  // A process that was stopped, or had no processor, has not heard what nodes said meanwhile.
  if (const Millis missed = now - std::exchange(ticked_, now); missed > kStall)
    for (auto& node : nodes_)
      if (node != nullptr) node->heard = std::min(now, node->heard + missed);
  while (!expiries_.empty() && expiries_.front().first <= now) {
    const auto found = waiters_.find(expiries_.front().second);
    expiries_.pop_front();
    if (found == waiters_.end() || found->second.owed.kills == 0) continue;
    ++counters_.expired_waits;
    found->second.owed.kills = 0;
    if (found->second.owed.nothing()) end_wait(found->first);
  }
  for (auto& node : nodes_) {
    if (node == nullptr || !node->alive) continue;
    if (node->beat && node->beat->until <= now) {
      late_.push_back({node->beat->peer, node->beat->ticket, Beat::Answer{}});
      node->beat.reset();
    }
    if (now - node->heard > options_.terms.node_timeout_ms) lose(*node, now);
  }
  for (auto& [name, client] : clients_) {
    if (client.connections > 0 || client.extents.empty() ||
        now - client.gone_since < options_.terms.client_timeout_ms)
      continue;
    for (const auto& [grant, where] : std::exchange(client.extents, {}))
      close_extent(*segments_[where.first], where.second);
  }
  std::erase_if(clients_, [&](const auto& one) {
    return one.second.connections == 0 && one.second.extents.empty();
  });
  // Before anything goes for who waits.
  retry_grants(now);
  bool more = false;
  for (auto& [name, pool] : pools_) {
    make_room(*pool, now, kVictims);
    start_promotions(*pool, now);
    more |= !pool->promoting.empty();
  }
  for (auto it = waiting_locates_.begin(); it != waiting_locates_.end();) {
    auto one = it++;
    if (one->second.until > now) continue;
    one->second.left = 1;
    end_locate(one->first, now);
  }
  while (!resting_.empty() && resting_.front().second <= now) {
    const SegmentId id = resting_.front().first;
    resting_.pop_front();
    auto& node = nodes_[segments_[id]->node];
    segments_[id] = nullptr;
    std::erase(node->segments, id);
    if (node->segments.empty() && !node->alive) node = nullptr;
  }
  if (!recovered_ && !recovering(now)) {
    recovered_ = true;
    sweep_.wanted = true;
  }
  more |= sweep(now);
  more |= repair(now);
  for (auto& node : nodes_)
    if (node != nullptr && node->alive && node->draining) more |= drain(*node, now);
  for (const uint32_t node : std::exchange(dirty_, {}))
    if (nodes_[node] != nullptr) flush(*nodes_[node]);
  tell_changes(now);

  if (more) return now + 1;
  Millis next = now + 50;
  if (!expiries_.empty()) next = std::min(next, expiries_.front().first);
  for (const auto& grant : waiting_grants_) next = std::min(next, grant.until);
  for (const auto& held : held_changes_) next = std::min(next, held.until);
  for (const auto& node : nodes_)
    if (node != nullptr && node->beat) next = std::min(next, node->beat->until);
  return std::max(next, now + 1);
}

bool Master::recovering(Millis now) const {
  if (recovered_) return false;
  if (now - start_ >= options_.recover_ms) return false;
  return !std::ranges::all_of(options_.expected_nodes, [&](const std::string& name) {
    return std::ranges::any_of(nodes_, [&](const auto& node) {
      return node != nullptr && node->alive && node->about.node == name &&
             std::ranges::none_of(node->segments, [&](SegmentId id) {
               return segments_[id]->state == Segment::State::kAdvertising;
             });
    });
  });
}

// --- objects ---

Replicas Master::replicas_of(const Pool& pool, const Object& object) const {
  if (object.listed != 0) return pool.lists[object.range];
  Replicas one;
  one.add({object.segment, object.range});
  return one;
}

Replicas Master::living(const Pool& pool, const Object& object) const {
  Replicas living;
  // Those in memory first.
  for (const Tier tier : {Tier::kMemory, Tier::kDisk})
    for (const Replica& replica : replicas_of(pool, object)) {
      const Segment& segment = *segments_[replica.segment];
      if (segment.about.tier == tier && usable(segment)) living.add(replica);
    }
  return living;
}

// Those in lost segments among them until sweep() comes: locations of them may be cached still, for
// which what replaces the object has to wait.
Replicas Master::room_for_one(const Pool& pool, const Object& object) const {
  const Replicas all = replicas_of(pool, object);
  return all.count < kMaxReplicas ? all : living(pool, object);
}

void Master::set_replicas(Pool& pool, ObjectId id, const Replicas& replicas) {
  Object& object = pool.index[id];
  for (const Replica& replica : replicas_of(pool, object)) {
    Segment& segment = *segments_[replica.segment];
    --segment.objects;
    if (segment.ranges && segment.ranges->owner(replica.range) == id)
      segment.ranges->set_owner(replica.range, RangeAllocator::kNoOwner);
  }
  for (const Replica& replica : replicas) {
    Segment& segment = *segments_[replica.segment];
    ++segment.objects;
    if (segment.ranges) segment.ranges->set_owner(replica.range, id);
  }
  if (object.listed != 0) {
    pool.free_lists.push_back(object.range);
    object.listed = 0;
  }
  if (replicas.count == 1) {
    object.segment = replicas.all[0].segment;
    object.range = replicas.all[0].range;
    return;
  }
  if (pool.free_lists.empty()) {
    pool.free_lists.push_back(static_cast<uint32_t>(pool.lists.size()));
    pool.lists.emplace_back();
  }
  object.listed = 1;
  object.range = pool.free_lists.back();
  pool.free_lists.pop_back();
  pool.lists[object.range] = replicas;
}

ObjectId Master::make_object(Pool& pool, std::string_view key, const Replicas& replicas) {
  const ObjectId id = pool.index.insert(key);
  pool.changes.note(true, key);
  Object& object = pool.index[id];
  // An empty list, which is replaced at once, so that counts of segments are right.
  if (pool.free_lists.empty()) {
    pool.free_lists.push_back(static_cast<uint32_t>(pool.lists.size()));
    pool.lists.emplace_back();
  }
  object.listed = 1;
  object.range = pool.free_lists.back();
  pool.free_lists.pop_back();
  pool.lists[object.range] = {};
  set_replicas(pool, id, replicas);
  return id;
}

void Master::forget(Pool& pool, ObjectId id) {
  Object& object = pool.index[id];
  if (object.grouped != 0) pool.groups.leave(id);
  unrank(pool, id, false);
  set_replicas(pool, id, {});
  pool.free_lists.push_back(object.range);
  pool.changes.note(false, pool.index.key(id));
  pool.index.erase(id);
}

void Master::join_group(Pool& pool, ObjectId id, uint64_t group) {
  Object& object = pool.index[id];
  if (object.grouped != 0) pool.groups.leave(id);
  object.grouped = group != 0 ? 1 : 0;
  if (group != 0) pool.groups.join(id, group);
}

uint32_t Master::lease_tick(Millis time) const {
  return static_cast<uint32_t>((time - start_) / kLeaseTickMs + 1);
}

bool Master::leased(const Object& object, Millis now) const {
  return object.lease_end > lease_tick(now);
}

uint64_t Master::range_bytes(const Replica& replica) const {
  const Segment& segment = *segments_[replica.segment];
  return segment.ranges ? segment.ranges->at(replica.range).bytes
                        : uint64_t{replica.range} * kGrain;
}

uint64_t Master::record_bytes(const Pool& pool, ObjectId id) const {
  const Replicas replicas = replicas_of(pool, pool.index[id]);
  return replicas.count == 0 ? 0 : range_bytes(replicas.all[0]);
}

uint64_t& Master::floor_of(Pool& pool, std::string_view key) {
  constexpr std::size_t kBuckets = 65536;
  if (pool.floors.empty()) pool.floors.resize(kBuckets);
  return pool.floors[pool.index.hash_of(key) % kBuckets];
}

void Master::raise_floor(Pool& pool, std::string_view key, uint64_t generation) {
  uint64_t& floor = floor_of(pool, key);
  floor = std::max(floor, generation);
}

void Master::bury(Pool& pool, std::string_view key, uint64_t generation, bool may_return) {
  raise_floor(pool, key, generation);
  pool.burials.add(pool.index.hash_of(key), generation, may_return);
}

// One that never changes may come back with a node: it is as good as before. Where `may_return` is
// set, so is one that does, as long as nobody has put the key again.
void Master::bury_if_mutable(Pool& pool, ObjectId id, bool may_return) {
  const std::string_view key = pool.index.key(id);
  const uint64_t generation = pool.index[id].generation - (may_return ? 1 : 0);
  if ((pool.index[id].flags & kMutable) != 0)
    bury(pool, key, generation, may_return);
  else
    raise_floor(pool, key, generation);
}

uint64_t Master::memory_bytes() const {
  uint64_t bytes = 0;
  for (const auto& [name, pool] : pools_)
    bytes += pool->index.memory_bytes() + pool->policy->memory_bytes() +
             pool->burials.memory_bytes() + pool->refusals.memory_bytes() +
             pool->lists.capacity() * sizeof(Replicas) + pool->changes.memory_bytes();
  for (const auto& segment : segments_)
    if (segment != nullptr && segment->ranges) bytes += segment->ranges->memory_bytes();
  return bytes;
}

}  // namespace inlay::store
