// Extents that a client holds. A put takes a lane for itself, so that an extent is filled front to
// back, and puts of several threads do not wait for each other.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include "reach.h"
#include "record.h"

namespace inlay::store {

// What decides on which nodes an object may lie.
struct Placement {
  uint16_t replicas = 1;
  bool all_replicas = false;  // fewer are an error
  std::string preferred_node = {};
  bool require_preferred = false;

  auto operator<=>(const Placement&) const = default;
};

// Of a wait for room: nearly all the time of the call.
inline constexpr std::chrono::milliseconds kAsLongAsItHas = std::chrono::milliseconds::max();

// As many extents as replicas; each record goes to all of them.
struct Lane {
  struct Cursor {
    Extent extent;
    ReachPtr reach;
    uint64_t at;  // in the segment
  };
  std::vector<Cursor> cursors;
  uint64_t next_generation = 0;
  uint64_t end_generation = 0;

  bool has_room(const RecordShape& shape) const;
  uint64_t room() const;  // bytes
};

class Lanes {
 public:
  Lanes(MasterLink& link, Reaches& reaches) : link_(link), reaches_(reaches) {}

  // One with room for `first`, and perhaps for `bytes` in all. Throws StoreFailure: kFull when
  // there was none for `wait`; ArgumentError where there will be none.
  Lane take(const Placement& placement, const RecordShape& first, uint64_t bytes,
            Clock::time_point until, std::chrono::milliseconds wait = kAsLongAsItHas);
  void put_back(const Placement& placement, Lane lane);
  // The master may use what is left of it, but for what is committed.
  void drop(const Lane& lane);
  void drop_idle();
  // No further extents there for a while: it did not take a write.
  void avoid(SegmentId segment);

 private:
  Lane ask(const Placement& placement, const RecordShape& first, uint64_t bytes,
           Clock::time_point until, std::chrono::milliseconds wait);
  std::vector<SegmentId> avoided();

  MasterLink& link_;
  Reaches& reaches_;
  std::mutex mutex_;
  std::map<Placement, std::vector<Lane>> idle_;
  uint64_t total_bytes_ = 0;  // of the tenant's segments, when it was last told
  std::vector<std::pair<SegmentId, Clock::time_point>> avoided_;
};

}  // namespace inlay::store
