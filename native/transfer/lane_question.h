// What the initiator of a lane asks its target about it, over any lane.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "transport.h"

namespace inlay::transfer {

enum class LaneAsk : uint32_t {
  kShut = 1,   // nothing of it lands any more
  kLease = 2,  // repeats a time, or 0; the answer is the target's time (u64, ms). See lane_lease.h
};

struct LaneQuestion {
  LaneAsk ask;
  uint64_t connection;  // of the lane, as in net::Hello
  uint64_t time = 0;
};
Bytes encode(const LaneQuestion& question);
std::optional<LaneQuestion> decode_lane_question(std::span<const std::byte> bytes);

}  // namespace inlay::transfer
