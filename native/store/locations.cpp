#include "locations.h"

namespace inlay::store {

LocationPtr Locations::find(std::string_view key) const {
  const Shard& in = shard(key);
  const std::lock_guard lock(in.mutex);
  const auto found = in.of.find(key);
  return found == in.of.end() ? nullptr : found->second;
}

void Locations::put(std::string_view key, LocationPtr location) {
  auto& in = const_cast<Shard&>(shard(key));
  const std::lock_guard lock(in.mutex);
  const auto found = in.of.find(key);
  if (found != in.of.end()) {
    if (found->second->generation <= location->generation) found->second = std::move(location);
    return;
  }
  // Any: a location costs one question to find again.
  if (in.of.size() >= kMaxPerShard) in.of.erase(in.of.begin());
  in.of.emplace(key, std::move(location));
}

void Locations::forget(std::string_view key, const LocationPtr& location) {
  auto& in = const_cast<Shard&>(shard(key));
  const std::lock_guard lock(in.mutex);
  const auto found = in.of.find(key);
  if (found != in.of.end() && found->second == location) in.of.erase(found);
}

}  // namespace inlay::store
