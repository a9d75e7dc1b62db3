// What is asked of an engine, and the pieces of it that paths move.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "../core/time_ns.h"
#include "../net/socket.h"
#include "../net/wire.h"
#include "segment.h"

namespace inlay::transfer {

using net::Clock;

inline TimeNs time_of(Clock::time_point time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}

class Peer;

enum class Op : uint8_t { kRead, kWrite };  // seen from this engine: kRead fills local memory

struct Range {
  uint64_t local;  // offsets inside the two segments
  uint64_t remote;
  uint64_t length;
};

// A peer's segment as its owner described it.
struct RemoteSegment {
  std::shared_ptr<Peer> peer;
  std::string name;
  net::SegmentDescriptor descriptor;
  std::atomic<bool> closed{false};  // an answer said so
  std::weak_ptr<Segment> own;       // of far memory of this engine

  bool contains(uint64_t offset, uint64_t length) const {
    return length <= descriptor.size && offset <= descriptor.size - length;
  }
};

// Transfers between one local and one remote segment; not changed once submitted.
struct Request {
  Op op;
  std::shared_ptr<Segment> local;
  std::shared_ptr<RemoteSegment> remote;
  std::vector<Range> ranges;
  uint64_t bytes = 0;
  bool verify = false;  // the bytes' CRC32C is compared where they land
  // The CRC32C of its bytes is told with the result: of those that came or were there, in the order
  // of the ranges. Host memory alone.
  bool checksum = false;
  uint64_t grant = 0;  // of a write to a guarded segment
};

// A part of a request: from `skip` bytes into range `first` on, `bytes` bytes in `num_ranges`
// ranges, at most net::kMaxRanges.
struct Slice {
  const Request* request = nullptr;  // lives as long as the attempt's owner
  std::size_t first = 0;
  std::size_t num_ranges = 0;
  uint64_t skip = 0;
  uint64_t bytes = 0;

  // Calls visit(Range) for each piece in order.
  template <typename Visit>
  void each(Visit&& visit) const {
    uint64_t left = bytes;
    uint64_t from = skip;
    for (std::size_t i = first; i < first + num_ranges; ++i) {
      const Range& range = request->ranges[i];
      const uint64_t step = std::min(range.length - from, left);
      visit(Range{range.local + from, range.remote + from, step});
      left -= step;
      from = 0;
    }
  }
  // Of the request's bytes, those that come after these.
  uint64_t bytes_after() const {
    uint64_t after = request->bytes - skip - bytes;
    for (std::size_t i = 0; i < first; ++i) after -= request->ranges[i].length;
    return after;
  }
};

// One try of one slice on one path. Made by the dispatcher; a path keeps it from post() until it
// has reported its end, and moves nothing of it afterwards.
struct Attempt {
  Slice slice;
  // What revoke() and abandon() name; it keeps request and segments until the attempt is over.
  const void* owner = nullptr;
  uint64_t transfer = 0;          // the batch's number, never used again
  uint32_t slice_id = 0;          // in its batch
  uint16_t number = 0;            // of tries of this slice before this one
  uint64_t submission_bytes = 0;  // of the submission, for this peer
  Clock::time_point sent{};
  void* context = nullptr;  // the path's own
  // The CRC32C of the slice's bytes, where the request asks for it and the path computed it while
  // they passed; else the dispatcher does.
  std::optional<uint32_t> sum;
};

}  // namespace inlay::transfer
