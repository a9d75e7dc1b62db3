#include "lanes.h"

#include <algorithm>
#include <limits>

#include "../core/errors.h"

namespace inlay::store {

namespace {

constexpr uint64_t kLeastExtent = uint64_t{256} << 10;
constexpr uint64_t kMostExtent = uint64_t{64} << 20;
// Extents are this part of the pool, so that what clients hold and do not use stays little.
constexpr uint64_t kPartOfPool = 256;
constexpr std::size_t kMaxIdle = 8;
constexpr std::chrono::seconds kAvoidance(5);

uint32_t milliseconds_until(Clock::time_point until) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()).count();
  return static_cast<uint32_t>(std::clamp<int64_t>(left, 0, 1'000'000));
}

std::string text_of(const Placement& placement) {
  std::string text = std::to_string(placement.replicas) +
                     (placement.replicas == 1 ? " replica" : " replicas on different nodes");
  if (!placement.preferred_node.empty()) text += ", node '" + placement.preferred_node + "' first";
  return text;
}

[[noreturn]] void refuse(const Placement& placement, const RecordShape& first,
                         const Grant::Answer& answer) {
  switch (answer.room) {
    case Room::kTooLarge:
      throw ArgumentError("value: a record of " + std::to_string(first.bytes) +
                          " bytes is larger than any segment of the store (" +
                          std::to_string(answer.total_bytes) +
                          " bytes in all): put it in parts under several keys, or contribute "
                          "larger segments");
    case Room::kUnknownNode:
      throw ArgumentError("preferred_node: the store has no node '" + placement.preferred_node +
                          "'; leave it out, or do not require it");
    case Room::kNoNode:
      throw StoreFailure(StoreStatus::kUnavailable,
                         "no node can take " + text_of(placement) +
                             ": contribute memory, or ask for fewer replicas");
    default:
      throw StoreFailure(StoreStatus::kFull,
                         "the store has no room for " + std::to_string(first.bytes) + " bytes (" +
                             std::to_string(answer.free_bytes) + " of " +
                             std::to_string(answer.total_bytes) +
                             " bytes are free) and may evict nothing more: contribute more memory, "
                             "unpin or remove objects");
  }
}

}  // namespace

bool Lane::has_room(const RecordShape& shape) const {
  return next_generation < end_generation &&
         std::ranges::all_of(
             cursors,
             [&](const Cursor& c) {
               const uint64_t end = c.extent.offset + c.extent.bytes;
               const uint64_t at = aligned(c.at, shape.alignment);
               return at <= end && shape.bytes <= end - at;
             });
}

uint64_t Lane::room() const {
  uint64_t least = std::numeric_limits<uint64_t>::max();
  for (const Cursor& c : cursors) {
    const uint64_t end = c.extent.offset + c.extent.bytes;
    least = std::min(least, end - std::min(c.at, end));
  }
  return least;
}

Lane Lanes::take(const Placement& placement, const RecordShape& first, uint64_t bytes,
                 Clock::time_point until, std::chrono::milliseconds wait) {
  {
    const std::lock_guard lock(mutex_);
    std::vector<Lane>& idle = idle_[placement];
    // The fullest: small records use up what larger ones left over.
    auto fits = idle.end();
    for (auto it = idle.begin(); it != idle.end(); ++it)
      if (it->has_room(first) && (fits == idle.end() || it->room() < fits->room())) fits = it;
    if (fits != idle.end()) {
      Lane lane = std::move(*fits);
      idle.erase(fits);
      return lane;
    }
  }
  return ask(placement, first, bytes, until, wait);
}

Lane Lanes::ask(const Placement& placement, const RecordShape& first, uint64_t bytes,
                Clock::time_point until, std::chrono::milliseconds wait) {
  // An extent for large records begins where they may.
  const uint64_t least = first.bytes;
  uint64_t part;
  {
    const std::lock_guard lock(mutex_);
    part = std::clamp(total_bytes_ / kPartOfPool, kLeastExtent, kMostExtent);
  }
  Grant grant{
      .bytes = std::max({least, std::min(bytes, kMostExtent), part}),
      .least_bytes = least,
      .copies = placement.replicas,
      .all_copies = placement.all_replicas,
      .preferred_node = placement.preferred_node,
      .require_preferred = placement.require_preferred,
      .avoid = avoided(),
  };
  // What this client holds for nothing is let go of before it waits for room.
  Grant::Answer answer;
  for (bool again = false;; again = true) {
    answer = link_.ask(Grant(grant), until);
    if (answer.room != Room::kFull || again) break;
    drop_idle();
    grant.bytes = least;
    const uint32_t most = milliseconds_until(until) * 4 / 5;
    grant.wait_ms = static_cast<uint32_t>(std::min<int64_t>(most, wait.count()));
  }
  if (answer.room != Room::kGranted || answer.extents.empty()) refuse(placement, first, answer);
  const auto reaches = reaches_.of_version(answer.table_version, until);
  // Where free room is in pieces, each copy has several; a lane has one of each copy.
  std::vector<Lane> lanes;
  std::vector<std::size_t> of_copy(kMaxReplicas);
  std::size_t copies = 0;
  for (const Extent& extent : answer.extents) {
    ReachPtr reach = extent.segment < reaches->size() ? (*reaches)[extent.segment] : nullptr;
    if (reach == nullptr || extent.copy >= kMaxReplicas)
      throw StoreFailure(StoreStatus::kUnavailable,
                         "the master granted room in a segment that it does not list");
    const std::size_t at = of_copy[extent.copy]++;
    copies = std::max<std::size_t>(copies, extent.copy + std::size_t{1});
    if (at == lanes.size()) lanes.emplace_back();
    Lane& lane = lanes[at];
    lane.cursors.push_back({extent, std::move(reach), extent.offset});
    if (extent.first_generation < lane.next_generation) continue;
    lane.next_generation = extent.first_generation;
    lane.end_generation = extent.first_generation + extent.num_generations;
  }
  {
    const std::lock_guard lock(mutex_);
    total_bytes_ = answer.total_bytes;
  }
  for (std::size_t i = 1; i < lanes.size(); ++i) {
    if (lanes[i].cursors.size() == copies)
      put_back(placement, std::move(lanes[i]));
    else
      drop(lanes[i]);
  }
  return std::move(lanes.front());
}

void Lanes::put_back(const Placement& placement, Lane lane) {
  {
    const std::lock_guard lock(mutex_);
    std::vector<Lane>& idle = idle_[placement];
    if (lane.has_room(shape_of(1, 1))) {
      idle.push_back(std::move(lane));
      if (idle.size() <= kMaxIdle) return;
      // Not the newest: what larger records leave over would keep all others out in the end.
      const auto fullest = std::ranges::min_element(idle, {}, &Lane::room);
      lane = std::move(*fullest);
      idle.erase(fullest);
    }
  }
  drop(lane);
}

void Lanes::drop(const Lane& lane) {
  GiveBack back;
  for (const Lane::Cursor& cursor : lane.cursors) back.grants.push_back(cursor.extent.grant);
  // Nobody waits for it: what the master does not hear, it finds out by the client's silence.
  if (!back.grants.empty())
    link_.ask<GiveBack>(std::move(back), Clock::now() + std::chrono::seconds(5),
                        [](StoreStatus, GiveBack::Answer) {});
}

void Lanes::drop_idle() {
  std::map<Placement, std::vector<Lane>> idle;
  {
    const std::lock_guard lock(mutex_);
    idle.swap(idle_);
  }
  for (const auto& [placement, lanes] : idle)
    for (const Lane& lane : lanes) drop(lane);
}

void Lanes::avoid(SegmentId segment) {
  const std::lock_guard lock(mutex_);
  avoided_.emplace_back(segment, Clock::now() + kAvoidance);
}

std::vector<SegmentId> Lanes::avoided() {
  const std::lock_guard lock(mutex_);
  std::erase_if(avoided_, [now = Clock::now()](const auto& entry) { return entry.second <= now; });
  std::vector<SegmentId> segments;
  for (const auto& [segment, until] : avoided_) segments.push_back(segment);
  return segments;
}

}  // namespace inlay::store
