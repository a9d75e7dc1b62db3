#include "door.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

#include "../net/process_memory.h"

namespace inlay::transfer {

namespace {

struct Doors {
  std::mutex mutex;
  std::map<net::EngineId, std::shared_ptr<Door>> all;
};

// Never destroyed: at exit threads may still use it.
Doors& doors() {
  static auto* const one = new Doors();
  return *one;
}

}  // namespace

std::shared_ptr<SegmentUse> Door::use(uint32_t slot, uint32_t epoch) {
  const std::shared_lock lock(mutex_);
  return segments_ == nullptr ? nullptr : segments_->use(slot, epoch);
}

bool Door::is_open() {
  const std::shared_lock lock(mutex_);
  return segments_ != nullptr;
}

std::shared_ptr<Door> open_door(const net::EngineId& engine, SegmentRegistry& segments) {
  const std::lock_guard lock(doors().mutex);
  auto& door = doors().all[engine];
  if (door == nullptr) {
    door = std::make_shared<Door>();
    door->segments_ = &segments;
  }
  return door;
}

void close_door(const net::EngineId& engine) {
  std::shared_ptr<Door> door;
  {
    const std::lock_guard lock(doors().mutex);
    const auto found = doors().all.find(engine);
    if (found == doors().all.end()) return;
    door = std::move(found->second);
    doors().all.erase(found);
  }
  const std::lock_guard lock(door->mutex_);
  door->segments_ = nullptr;
}

std::shared_ptr<Door> find_door(const net::EngineId& engine, std::span<const std::byte> mark,
                                const char*& problem) {
  if (!std::ranges::equal(mark, net::this_process_mark().value)) {
    problem = "it is another process";
    return nullptr;
  }
  const std::lock_guard lock(doors().mutex);
  const auto found = doors().all.find(engine);
  if (found != doors().all.end()) return found->second;
  problem = "it is closed";
  return nullptr;
}

std::vector<std::byte> door_mark() {
  const auto& mark = net::this_process_mark().value;
  return {mark.begin(), mark.end()};
}

}  // namespace inlay::transfer
