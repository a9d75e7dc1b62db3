// Records and their headers, written into the extents of a lane.
#include <algorithm>
#include <cstring>
#include <thread>

#include "../core/crc32c.h"
#include "../core/stream_copy.h"
#include "client.h"
#include "moving.h"
#include "placed.h"

namespace inlay::store {

namespace {

void copy_parts(std::byte* to, const Value& value, uint32_t* crc) {
  const bool streaming = is_streaming(value.bytes());
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

// The headers of records that are written: with another generation, or as fillers. False: not all
// nodes took it; those that do not answer keep it from no other.
bool StoreClient::write_again(Lane& lane, std::span<const Value> values,
                              const std::vector<Placed>& placed, bool as_filler,
                              Clock::time_point until) {
  const auto header_of = [&](const Placed& record) {
    return as_filler ? make_filler(record.shape.bytes)
                     : make_record(values[record.index].key, record.fields);
  };
  bool written = true;
  std::vector<Moving> under_way;
  for (std::size_t c = 0; c < lane.cursors.size(); ++c) {
    const Lane::Cursor& cursor = lane.cursors[c];
    if (HostSegment* mapped = cursor.reach->mapped()) {
      const auto writing = mapped->write(cursor.extent);
      written &= writing.has_value();
      for (const Placed& record : placed) {
        if (!writing) break;
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
      std::vector<transfer::Request> requests;
      writes.finish(requests);
      under_way.emplace_back(*engine_, std::move(requests), until);
    } catch (const TransferFailure&) {
      written = false;
    }
  }
  for (Moving& moving : under_way) written &= moving.finish().state() == transfer::State::kDone;
  return written;
}

}  // namespace inlay::store
