// Writing records into granted room, and committing them.
#include <algorithm>
#include <cstring>
#include <thread>

#include "../core/crc32c.h"
#include "../core/errors.h"
#include "../core/interrupt.h"
#include "../core/stream_copy.h"
#include "client.h"
#include "moving.h"

namespace inlay::store {

namespace {

constexpr std::size_t kMaxBatch = 4096;

uint64_t bytes_of(const Value& value) {
  uint64_t bytes = 0;
  for (const Part& part : value.parts) bytes += part.bytes;
  return bytes;
}

void copy_parts(std::byte* to, const Value& value, uint32_t* crc) {
  const bool streaming = is_streaming(bytes_of(value));
  for (const Part& part : value.parts) {
    if (crc != nullptr)
      *crc = copy_crc32c(to, part.data, part.bytes, streaming, *crc);
    else
      copy_bytes(to, part.data, part.bytes, streaming);
    to += part.bytes;
  }
}

void copy_head(std::byte* to, const RecordHeader& header, std::string_view key) {
  std::memcpy(to + sizeof(header), key.data(), key.size());
  std::memcpy(to, &header, sizeof(header));
}

std::shared_ptr<transfer::Segment> local_segment(std::byte* base, uint64_t bytes,
                                                 std::shared_ptr<const void> keeper = nullptr) {
  return std::make_shared<transfer::Segment>(base, bytes, true, transfer::Access::kNone,
                                             std::string(), std::move(keeper));
}

}  // namespace

// A record's place in a lane.
struct StoreClient::Placed {
  std::size_t index;  // of the value
  RecordShape shape;
  RecordFields fields{};
  bool has_crc = false;
  std::vector<uint64_t> offsets{};  // by cursor, in the segments
  std::vector<uint64_t> gaps{};     // in front of them
};

namespace {

// Writes to one remote extent: heads and small payloads from a buffer of ours, the others from
// where they are.
class RemoteWrites {
 public:
  RemoteWrites(std::shared_ptr<transfer::RemoteSegment> remote, uint64_t grant)
      : remote_(std::move(remote)), grant_(grant) {}
  // So much will be gathered, about.
  void reserve(uint64_t bytes) { buffer_.reserve(bytes); }

  // Room for `bytes` that go to `offset`.
  std::byte* gather(uint64_t offset, uint64_t bytes) {
    const std::size_t at = buffer_.size();
    buffer_.resize(at + bytes);
    if (!ranges_.empty() && ranges_.back().remote + ranges_.back().length == offset &&
        ranges_.back().local + ranges_.back().length == at)
      ranges_.back().length += bytes;
    else
      ranges_.push_back({at, offset, bytes});
    return buffer_.data() + at;
  }
  void add(uint64_t offset, const Part& part) {
    if (part.bytes == 0) return;
    requests_.push_back({.op = transfer::Op::kWrite,
                         .local = local_segment(const_cast<std::byte*>(part.data), part.bytes),
                         .remote = remote_,
                         .ranges = {{0, offset, part.bytes}},
                         .grant = grant_});
  }
  void finish(std::vector<transfer::Request>& requests) {
    if (!ranges_.empty()) {
      auto kept = std::make_shared<std::vector<std::byte>>(std::move(buffer_));
      std::byte* base = kept->data();
      const uint64_t bytes = kept->size();
      requests.push_back({.op = transfer::Op::kWrite,
                          .local = local_segment(base, bytes, std::move(kept)),
                          .remote = remote_,
                          .ranges = std::move(ranges_),
                          .grant = grant_});
    }
    std::ranges::move(requests_, std::back_inserter(requests));
  }

 private:
  const std::shared_ptr<transfer::RemoteSegment> remote_;
  const uint64_t grant_;
  std::vector<std::byte> buffer_;
  std::vector<transfer::Range> ranges_;
  std::vector<transfer::Request> requests_;
};

}  // namespace

std::vector<Commit::Result> StoreClient::put(std::span<const Value> values,
                                             const PutOptions& options, Clock::time_point until) {
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
  std::vector<Commit::Result> results(values.size());
  while (!pending.empty()) {
    if (pending.size() < values.size() && interrupted()) throw Interrupted();
    if (Clock::now() >= until)
      throw StoreFailure(StoreStatus::kTimeout,
                         std::to_string(pending.size()) + " of " + std::to_string(values.size()) +
                             " objects were not stored in time, the first '" +
                             std::string(values[pending.front()].key.substr(0, 80)) + "'");
    pending = put_in_lane(values, std::move(pending), options, results, until);
  }
  count(values, results);
  for (std::size_t i = 0; options.on_disk && i < results.size(); ++i)
    if (results[i].outcome != Committed::kExists && !results[i].on_disk)
      throw StoreFailure(
          StoreStatus::kFull,
          "object '" + std::string(values[i].key.substr(0, 80)) +
              "' is stored in memory alone: its nodes have no disk, or none that takes it");
  return results;
}

void StoreClient::count(std::span<const Value> values, std::span<const Commit::Result> results) {
  uint64_t stored = 0;
  uint64_t bytes = 0;
  for (std::size_t i = 0; i < results.size(); ++i) {
    if (results[i].outcome != Committed::kStored) continue;
    ++stored;
    bytes += bytes_of(values[i]);
  }
  counts_.stored.add(stored);
  counts_.stored_bytes.add(bytes);
  counts_.kept.add(results.size() - stored);
}

// Returns those that are to be put again.
std::vector<std::size_t> StoreClient::put_in_lane(std::span<const Value> values,
                                                  std::vector<std::size_t> pending,
                                                  const PutOptions& options,
                                                  std::vector<Commit::Result>& results,
                                                  Clock::time_point until) {
  const auto shape = [&](std::size_t index) {
    const Value& value = values[index];
    return shape_of(value.key.size(), bytes_of(value), value.parent.size());
  };
  uint64_t bytes = 0;
  for (const std::size_t index : pending) bytes += shape(index).bytes;
  Lane lane = lanes_.take(options.placement, shape(pending.front()), bytes, until);

  std::vector<Placed> placed;
  std::size_t count = 0;
  for (; count < pending.size() && count < kMaxBatch; ++count) {
    const std::size_t index = pending[count];
    Placed record{.index = index, .shape = shape(index)};
    if (!lane.has_room(record.shape)) break;
    record.fields = {
        .generation = lane.next_generation++,
        .payload_bytes = bytes_of(values[index]),
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

// False: not all nodes took it.
bool StoreClient::write(Lane& lane, std::span<const Value> values, std::vector<Placed>& placed,
                        Clock::time_point until) {
  const auto header_of = [&](const Placed& record) {
    return make_record(values[record.index].key, record.fields);
  };
  for (std::size_t c = 0; c < lane.cursors.size(); ++c) {
    const Lane::Cursor& cursor = lane.cursors[c];
    HostSegment* mapped = cursor.reach->mapped();
    if (mapped == nullptr) continue;
    const auto writing = mapped->write(cursor.extent);
    if (!writing) return false;
    for (Placed& record : placed) {
      std::byte* at = writing->bytes.data() + (record.offsets[c] - cursor.extent.offset);
      copy_parts(at + record.shape.payload_offset, values[record.index],
                 record.has_crc ? nullptr : &record.fields.payload_crc);
      record.has_crc = true;
      write_tail(at + record.shape.payload_offset + record.fields.payload_bytes,
                 values[record.index].parent);
      copy_head(at, header_of(record), values[record.index].key);
      if (record.gaps[c] == 0) continue;
      const RecordHeader gap = make_filler(record.gaps[c]);
      std::memcpy(at - record.gaps[c], &gap, sizeof(gap));
    }
  }
  // A node at a time, so that the one is known that does not take it.
  std::vector<std::pair<SegmentId, Moving>> under_way;
  std::optional<TransferFailure> failure;
  SegmentId failed = 0;
  for (std::size_t c = 0; c < lane.cursors.size() && !failure; ++c) {
    if (lane.cursors[c].reach->mapped() != nullptr) continue;
    const SegmentId asked = lane.cursors[c].extent.segment;
    try {
      std::vector<transfer::Request> requests;
      RemoteWrites writes(lane.cursors[c].reach->remote(until), lane.cursors[c].extent.grant);
      uint64_t gathered_bytes = 0;
      for (const Placed& record : placed)
        gathered_bytes += std::min(record.shape.bytes, kGatherUpTo + kLargeAlignment);
      writes.reserve(gathered_bytes);
      for (Placed& record : placed) {
        const Value& value = values[record.index];
        if (!record.has_crc)
          for (const Part& part : value.parts)
            record.fields.payload_crc = crc32c({part.data, part.bytes}, record.fields.payload_crc);
        record.has_crc = true;
        const uint64_t at = record.offsets[c];
        if (record.gaps[c] != 0) {
          const RecordHeader gap = make_filler(record.gaps[c]);
          std::memcpy(writes.gather(at - record.gaps[c], sizeof(gap)), &gap, sizeof(gap));
        }
        const bool gathered = record.fields.payload_bytes <= kGatherUpTo;
        std::byte* head = writes.gather(
            at, gathered ? record.shape.bytes : sizeof(RecordHeader) + value.key.size());
        copy_head(head, header_of(record), value.key);
        if (gathered) {
          copy_parts(head + record.shape.payload_offset, value, nullptr);
          write_tail(head + record.shape.payload_offset + record.fields.payload_bytes,
                     value.parent);
          continue;
        }
        uint64_t to = at + record.shape.payload_offset;
        for (const Part& part : value.parts) {
          writes.add(to, part);
          to += part.bytes;
        }
        if (const std::size_t tail = tail_bytes(value.parent.size()); tail > 0)
          write_tail(writes.gather(to, tail), value.parent);
      }
      writes.finish(requests);
      if (!requests.empty())
        under_way.emplace_back(asked, Moving(*engine_, std::move(requests), until));
    } catch (const TransferFailure& problem) {
      failure = problem;
      failed = asked;
    }
  }
  for (auto& [segment, moving] : under_way) {
    transfer::Batch& batch = moving.finish();
    if (batch.state() == transfer::State::kDone || failure) continue;
    failure = batch.failure();
    failed = segment;
  }
  if (!failure) return true;
  if (failure->status == Status::kTimeout || Clock::now() >= until) throw failure_of(*failure);
  if (failure->status == Status::kGrant) return false;  // the extent is closed: another one
  lanes_.avoid(failed);
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  return false;
}

// The headers of records that are written: with another generation, or as fillers.
bool StoreClient::write_again(Lane& lane, std::span<const Value> values,
                              const std::vector<Placed>& placed, bool as_filler,
                              Clock::time_point until) {
  const auto header_of = [&](const Placed& record) {
    return as_filler ? make_filler(record.shape.bytes)
                     : make_record(values[record.index].key, record.fields);
  };
  std::vector<transfer::Request> requests;
  for (std::size_t c = 0; c < lane.cursors.size(); ++c) {
    const Lane::Cursor& cursor = lane.cursors[c];
    if (HostSegment* mapped = cursor.reach->mapped()) {
      const auto writing = mapped->write(cursor.extent);
      if (!writing) return false;
      for (const Placed& record : placed) {
        const RecordHeader header = header_of(record);
        std::memcpy(writing->bytes.data() + (record.offsets[c] - cursor.extent.offset), &header,
                    sizeof(header));
      }
      continue;
    }
    try {
      RemoteWrites writes(cursor.reach->remote(until), cursor.extent.grant);
      for (const Placed& record : placed) {
        const RecordHeader header = header_of(record);
        std::memcpy(writes.gather(record.offsets[c], sizeof(header)), &header, sizeof(header));
      }
      writes.finish(requests);
    } catch (const TransferFailure&) {
      return false;
    }
  }
  if (requests.empty()) return true;
  try {
    return Moving(*engine_, std::move(requests), until).finish().state() == transfer::State::kDone;
  } catch (const TransferFailure&) {
    return false;
  }
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
