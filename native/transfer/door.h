// The open engines of this process, as others of the process see them.
#pragma once

#include <cstddef>
#include <memory>
#include <shared_mutex>
#include <span>
#include <vector>

#include "../net/handshake.h"
#include "segment.h"

namespace inlay::transfer {

// Outlives its engine.
class Door {
 public:
  // Null: it is closed, or there is no such segment.
  std::shared_ptr<SegmentUse> use(uint32_t slot, uint32_t epoch);
  bool is_open();

 private:
  friend std::shared_ptr<Door> open_door(const net::EngineId& engine, SegmentRegistry& segments);
  friend void close_door(const net::EngineId& engine);

  std::shared_mutex mutex_;
  SegmentRegistry* segments_ = nullptr;  // null: the engine is closed
};

// The engine's door, which is opened by the first of its transports that wants one. It closes once,
// before the registry goes; nobody uses the registry through it afterwards.
std::shared_ptr<Door> open_door(const net::EngineId& engine, SegmentRegistry& segments);
void close_door(const net::EngineId& engine);

// An engine is found by its number alone, since an address in an offer would be one that a peer
// made up. `mark` is what the peer offered: net::this_process_mark() tells an engine of this
// process from one that a forked child inherited. Null, with the reason, when it is not here.
std::shared_ptr<Door> find_door(const net::EngineId& engine, std::span<const std::byte> mark,
                                const char*& problem);
// What an engine offers to be found so.
std::vector<std::byte> door_mark();

}  // namespace inlay::transfer
