// Puts: records into a lane, and their commit.
#include <algorithm>
#include <optional>
#include <thread>
#include <utility>

#include "../core/errors.h"
#include "../core/interrupt.h"
#include "client.h"
#include "placed.h"

namespace inlay::store {

namespace {

constexpr std::size_t kMaxBatch = 4096;
// For smaller values, when a larger one was waited for: extents that were given back are closed by
// their nodes meanwhile.
constexpr std::chrono::milliseconds kLaterRoomWait(20);

RecordShape shape_of_value(const Value& value) {
  return shape_of(value.key.size(), value.bytes(), value.parent.size());
}

}  // namespace

std::vector<Commit::Result> StoreClient::put(std::span<const Value> values,
                                             const PutOptions& options, Clock::time_point until,
                                             std::vector<LeftOut>* left_out,
                                             std::chrono::milliseconds room_wait) {
  require_open();
  if (options.placement.replicas < 1 || options.placement.replicas > kMaxReplicas)
    throw ArgumentError("replicas: must be in 1.." + std::to_string(kMaxReplicas) + ", got " +
                        std::to_string(options.placement.replicas));
  std::vector<std::size_t> pending;
  for (std::size_t i = 0; i < values.size(); ++i) {
    require_key(values[i].key);
    if (!values[i].parent.empty()) require_key(values[i].parent);
    pending.push_back(i);
  }
  std::vector<Commit::Result> results(values.size(), {.outcome = Committed::kUnknown});
  // What has no room, and all that is as large: a question for each would have the same answer.
  const auto leave_out = [&](bool for_good, const char* text) {
    const uint64_t bytes = shape_of_value(values[pending.front()]).bytes;
    std::erase_if(pending, [&](std::size_t index) {
      if (shape_of_value(values[index]).bytes < bytes) return false;
      left_out->push_back({index, for_good, text});
      return true;
    });
  };
  while (!pending.empty()) {
    if (pending.size() < values.size() && interrupted()) throw Interrupted();
    if (Clock::now() >= until)
      throw StoreFailure(StoreStatus::kTimeout,
                         std::to_string(pending.size()) + " of " + std::to_string(values.size()) +
                             " objects were not stored in time, the first '" +
                             std::string(values[pending.front()].key.substr(0, 80)) + "'");
    uint64_t bytes = 0;
    for (const std::size_t index : pending) bytes += shape_of_value(values[index]).bytes;
    std::optional<Lane> lane;
    try {
      lane = lanes_.take(options.placement, shape_of_value(values[pending.front()]), bytes, until,
                         room_wait);
    } catch (const StoreFailure& failure) {
      if (left_out == nullptr || failure.status != StoreStatus::kFull) throw;
      leave_out(false, failure.what());
      room_wait = std::min(room_wait, kLaterRoomWait);
      continue;
    } catch (const ArgumentError& error) {
      if (left_out == nullptr) throw;
      leave_out(true, error.what());
      continue;
    }
    pending = put_in_lane(*std::move(lane), values, std::move(pending), options, results, until);
  }
  count(values, results);
  for (std::size_t i = 0; options.on_disk && i < results.size(); ++i)
    if (results[i].outcome != Committed::kExists && results[i].outcome != Committed::kUnknown &&
        !results[i].on_disk)
      throw StoreFailure(
          StoreStatus::kFull,
          "object '" + std::string(values[i].key.substr(0, 80)) +
              "' is stored in memory alone: its nodes have no disk, or none that takes it");
  return results;
}

void StoreClient::count(std::span<const Value> values, std::span<const Commit::Result> results) {
  uint64_t stored = 0;
  uint64_t kept = 0;
  uint64_t bytes = 0;
  for (std::size_t i = 0; i < results.size(); ++i) {
    if (results[i].outcome == Committed::kUnknown) continue;  // left out
    if (results[i].outcome != Committed::kStored) {
      ++kept;
      continue;
    }
    ++stored;
    bytes += values[i].bytes();
  }
  counts_.stored.add(stored);
  counts_.stored_bytes.add(bytes);
  counts_.kept.add(kept);
}

// Returns those that are to be put again.
std::vector<std::size_t> StoreClient::put_in_lane(Lane lane, std::span<const Value> values,
                                                  std::vector<std::size_t> pending,
                                                  const PutOptions& options,
                                                  std::vector<Commit::Result>& results,
                                                  Clock::time_point until) {
  std::vector<Placed> placed;
  std::size_t count = 0;
  for (; count < pending.size() && count < kMaxBatch; ++count) {
    const std::size_t index = pending[count];
    Placed record{.index = index, .shape = shape_of_value(values[index])};
    if (!lane.has_room(record.shape)) break;
    record.fields = {
        .generation = lane.next_generation++,
        .payload_bytes = values[index].bytes(),
        .flags = static_cast<uint16_t>(options.flags |
                                       (options.if_exists == IfExists::kKeep ? 0 : kMutable)),
        .replicas = options.placement.replicas,
        .parent_bytes = static_cast<uint16_t>(values[index].parent.size()),
        .group = options.group,
        .recompute_us = options.recompute_us,
    };
    for (Lane::Cursor& cursor : lane.cursors) {
      const uint64_t at = aligned(cursor.at, record.shape.alignment);
      record.gaps.push_back(at - cursor.at);
      record.offsets.push_back(at);
      cursor.at = at + record.shape.bytes;
    }
    placed.push_back(std::move(record));
  }
  std::vector<std::size_t> again;
  try {
    // What failed or was closed may hold parts of records: nothing more is put there.
    if (!write(lane, values, placed, until)) {
      lanes_.drop(lane);
      return pending;
    }
    again = commit(lane, values, std::move(placed), options, results, until);
  } catch (...) {
    lanes_.drop(lane);
    throw;
  }
  if (again.empty())
    lanes_.put_back(options.placement, std::move(lane));
  else
    lanes_.drop(lane);
  again.insert(again.end(), pending.begin() + static_cast<std::ptrdiff_t>(count), pending.end());
  return again;
}

// Returns those that are to be put again, elsewhere.
std::vector<std::size_t> StoreClient::commit(Lane& lane, std::span<const Value> values,
                                             std::vector<Placed> placed, const PutOptions& options,
                                             std::vector<Commit::Result>& results,
                                             Clock::time_point until) {
  std::vector<std::size_t> again;
  std::vector<Placed> unused;
  while (!placed.empty()) {
    Commit question;
    for (const Placed& record : placed) {
      question.entries.push_back({
          .key = values[record.index].key,
          .parent = values[record.index].parent,
          .payload_bytes = record.fields.payload_bytes,
          .record_bytes = record.shape.bytes,
          .generation = record.fields.generation,
          .group = record.fields.group,
          .recompute_us = record.fields.recompute_us,
          .flags = record.fields.flags,
          .wanted_replicas = options.placement.replicas,
          .if_exists = options.if_exists,
          .on_disk = options.on_disk,
          .first_place = static_cast<uint32_t>(question.places.size()),
          .num_places = static_cast<uint32_t>(lane.cursors.size()),
      });
      for (std::size_t c = 0; c < lane.cursors.size(); ++c)
        question.places.push_back({lane.cursors[c].extent.segment, record.offsets[c]});
    }
    const Clock::time_point asked = Clock::now();
    const Commit::Answer answer = link_.ask(std::move(question), until);
    std::vector<Placed> stale;
    std::vector<Placed> unknown;
    for (std::size_t i = 0; i < placed.size(); ++i) {
      const Commit::Result& result = answer.results.at(i);
      Placed& record = placed[i];
      const std::string_view key = values[record.index].key;
      switch (result.outcome) {
        case Committed::kStored:
          results[record.index] = result;
          remember(lane, key, record, asked);
          break;
        case Committed::kKept:
        case Committed::kExists:
          results[record.index] = result;
          unused.push_back(std::move(record));
          break;
        case Committed::kStale:
          record.fields.generation = result.generation;
          stale.push_back(std::move(record));
          break;
        case Committed::kUnknown:
          unknown.push_back(std::move(record));
          break;
        case Committed::kClosed:
          again.push_back(record.index);
          break;
        case Committed::kInvalid:
          throw ArgumentError("key '" + std::string(key.substr(0, 80)) + "': the master refuses " +
                              std::to_string(record.fields.payload_bytes) +
                              " bytes: larger than what it allows for an object");
      }
    }
    if (!stale.empty() && !write_again(lane, values, stale, false, until)) {
      for (const Placed& record : stale) again.push_back(record.index);
      stale.clear();
    }
    if (!unknown.empty()) {
      if (Clock::now() + kRecoveryPause >= until)
        throw StoreFailure(
            StoreStatus::kUnavailable,
            "the master still learns from its nodes what they hold: try again later");
      std::this_thread::sleep_for(kRecoveryPause);
    }
    placed = std::move(stale);
    std::ranges::move(unknown, std::back_inserter(placed));
  }
  // They must not be found by who reads the segment without the master.
  if (!unused.empty() && !write_again(lane, values, unused, true, until))
    for (Lane::Cursor& cursor : lane.cursors)
      cursor.at = cursor.extent.offset + cursor.extent.bytes;
  return again;
}

void StoreClient::remember(const Lane& lane, std::string_view key, const Placed& placed,
                           Clock::time_point asked) {
  auto location = std::make_shared<Location>(Location{
      placed.fields.generation,
      placed.fields.payload_bytes,
      placed.shape.bytes,
      placed.fields.flags,
      asked + std::chrono::milliseconds(link_.terms().location_ttl_ms),
      {},
  });
  for (std::size_t c = 0; c < lane.cursors.size(); ++c)
    location->spots.push_back({lane.cursors[c].reach, placed.offsets[c]});
  std::ranges::stable_partition(location->spots,
                                [](const Spot& spot) { return spot.reach->mapped() != nullptr; });
  locations_.put(key, std::move(location));
}

}  // namespace inlay::store
