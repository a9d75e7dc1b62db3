// Where objects are, as far as a client knows.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "reach.h"

namespace inlay::store {

struct Spot {
  ReachPtr reach;
  uint64_t offset;
};

// True once, to the first who asks.
class Once {
 public:
  Once() = default;
  Once(const Once&) {}
  bool take() const {
    return !taken_.load(std::memory_order_relaxed) &&
           !taken_.exchange(true, std::memory_order_relaxed);
  }

 private:
  mutable std::atomic<bool> taken_{false};
};

struct Location {
  uint64_t generation;
  uint64_t payload_bytes;
  uint64_t record_bytes;
  uint16_t flags;
  Clock::time_point expires;  // then the master may have forgotten that it told this
  std::vector<Spot> spots;    // in memory; mapped ones first
  Once touched{};             // the master was told that it is used
};
using LocationPtr = std::shared_ptr<const Location>;

class Locations {
 public:
  LocationPtr find(std::string_view key) const;
  void put(std::string_view key, LocationPtr location);
  // Only that one: another thread may have found a later one meanwhile.
  void forget(std::string_view key, const LocationPtr& location);

 private:
  static constexpr std::size_t kShards = 16;
  static constexpr std::size_t kMaxPerShard = 8192;

  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view key) const {
      return std::hash<std::string_view>()(key);
    }
  };
  struct Shard {
    mutable std::mutex mutex;
    std::unordered_map<std::string, LocationPtr, Hash, std::equal_to<>> of;
  };
  const Shard& shard(std::string_view key) const { return shards_[Hash()(key) % kShards]; }

  std::array<Shard, kShards> shards_;
};

}  // namespace inlay::store
