// What a client has done since it was made. Calls count when they end, so that a call of many keys
// costs as much as one of a single key.
#pragma once

#include <atomic>
#include <cstdint>

namespace inlay::store {

class Count {
 public:
  void add(uint64_t more) {
    if (more > 0) value_.fetch_add(more, std::memory_order_relaxed);
  }
  uint64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> value_{0};
};

struct ClientCounts {
  Count known, asked;  // locations that reads wanted: here already, or asked for
  Count absent;        // keys that reads wanted and that had no object
  Count read, read_bytes;
  Count again;    // tries of reads after which another replica, or the master, was asked
  Count damaged;  // reads of which no replica had the bytes that were put
  Count stored, stored_bytes;
  Count kept;  // puts of a key that had an object, which stayed
};

}  // namespace inlay::store
