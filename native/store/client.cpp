#include "client.h"

#include <algorithm>
#include <thread>

#include "../core/errors.h"
#include "../core/interrupt.h"

namespace inlay::store {

uint64_t Value::bytes() const {
  uint64_t all = 0;
  for (const Part& part : parts) all += part.bytes;
  return all;
}

void require_key(std::string_view key) {
  if (key.empty() || key.size() > kMaxKeyBytes)
    throw ArgumentError("key: must have 1.." + std::to_string(kMaxKeyBytes) + " bytes, got " +
                        std::to_string(key.size()) +
                        (key.empty() ? "" : " in '" + std::string(key.substr(0, 40)) + "...'"));
}

StoreFailure failure_of(const TransferFailure& failure) {
  const bool late = failure.status == Status::kTimeout;
  return {late ? StoreStatus::kTimeout : StoreStatus::kUnavailable,
          std::string("a node of the store was not reached: ") + failure.what()};
}

StoreClient::StoreClient(MasterLink& link, transfer::Engine* engine, Options options)
    : link_(link),
      engine_(engine),
      reaches_(link, engine, options.may_map),
      lanes_(link, reaches_),
      touches_(link) {}

StoreClient::~StoreClient() { close(); }

void StoreClient::close() {
  if (!closed_.exchange(true)) lanes_.drop_idle();
}

void StoreClient::require_open() const {
  if (closed_.load()) throw StoreFailure(StoreStatus::kClosed, "the store is closed");
}

// Asks about `keys` until the master knows of all: `ask` returns the positions that it does not.
template <typename Ask>
static void ask_until_known(std::span<const std::string_view> keys, Clock::time_point until,
                            Ask&& ask) {
  std::vector<std::size_t> left(keys.size());
  for (std::size_t i = 0; i < left.size(); ++i) left[i] = i;
  for (;;) {
    Keys some;
    some.reserve(left.size());
    for (const std::size_t i : left) some.push_back(keys[i]);
    left = ask(std::move(some), left);
    if (left.empty()) return;
    if (Clock::now() + kRecoveryPause >= until)
      throw StoreFailure(StoreStatus::kUnavailable,
                         "key '" + std::string(keys[left.front()]) +
                             "' was not found in time: the master still learns from its nodes "
                             "what they hold, or it comes from a disk; try again later");
    if (interrupted()) throw Interrupted();
    std::this_thread::sleep_for(kRecoveryPause);
  }
}

// Past its time a location is good only where nobody can have changed the object, and there is
// nobody to ask.
std::vector<LocationPtr> StoreClient::find(std::span<const std::string_view> keys,
                                           Clock::time_point until) {
  require_open();
  std::vector<LocationPtr> locations(keys.size());
  std::vector<std::size_t> unknown;
  std::vector<LocationPtr> old(keys.size());  // that is good where there is nobody to ask
  bool any_old = false;
  const Clock::time_point now = Clock::now();
  for (std::size_t i = 0; i < keys.size(); ++i) {
    require_key(keys[i]);
    LocationPtr known = locations_.find(keys[i]);
    if (known != nullptr && now < known->expires) {
      if (known->touched.take()) touches_.add(keys[i]);
      locations[i] = std::move(known);
      continue;
    }
    unknown.push_back(i);
    if (known == nullptr || (known->flags & kMutable) != 0) continue;
    old[i] = std::move(known);
    any_old = true;
  }
  counts_.known.add(keys.size() - unknown.size());
  counts_.asked.add(unknown.size());
  if (unknown.empty()) return locations;
  std::vector<std::string_view> asked_keys;
  for (const std::size_t i : unknown) asked_keys.push_back(keys[i]);
  ask_until_known(asked_keys, until, [&](Keys some, const std::vector<std::size_t>& positions) {
    const Clock::time_point asked = Clock::now();
    Locate::Answer answer;
    try {
      answer = any_old ? link_.ask_connected(Locate{.keys = some}, until)
                       : link_.ask(Locate{.keys = std::move(some)}, until);
    } catch (const StoreFailure& failure) {
      if (!any_old || failure.status != StoreStatus::kUnavailable) throw;
      any_old = false;
      std::vector<std::size_t> others;
      for (const std::size_t position : positions) {
        const std::size_t at = unknown[position];
        locations[at] = old[at];
        if (old[at] == nullptr) others.push_back(position);
      }
      return others;
    }
    const auto reaches = reaches_.of_version(answer.table_version, until);
    const auto expires = asked + std::chrono::milliseconds(link_.terms().location_ttl_ms);
    std::vector<std::size_t> left;
    std::vector<std::pair<std::size_t, LocationPtr>> later;  // on a disk still
    for (std::size_t i = 0; i < answer.found.size() && i < positions.size(); ++i) {
      const Locate::Found& found = answer.found[i];
      if (found.presence == Presence::kAbsent) continue;
      auto location = std::make_shared<Location>(Location{
          found.generation, found.payload_bytes, found.record_bytes, found.flags, expires, {}});
      for (uint32_t p = 0; p < found.num_places; ++p) {
        const Place place = answer.places.at(found.first_place + p);
        if (place.offset == Place::kSomewhere || place.segment >= reaches->size()) continue;
        const ReachPtr& reach = (*reaches)[place.segment];
        if (reach != nullptr) location->spots.push_back({reach, place.offset});
      }
      std::ranges::stable_partition(
          location->spots, [](const Spot& spot) { return spot.reach->mapped() != nullptr; });
      if (found.presence == Presence::kUnknown) {
        left.push_back(positions[i]);
        continue;
      }
      if (location->spots.empty()) {
        later.emplace_back(positions[i], std::move(location));
        continue;
      }
      const std::size_t at = unknown[positions[i]];
      locations_.put(keys[at], location);
      locations[at] = std::move(location);
    }
    // The memory may not be large enough for all at once.
    const bool has_some = later.size() + left.size() < positions.size();
    for (auto& [position, location] : later)
      if (has_some)
        locations[unknown[position]] = std::move(location);
      else
        left.push_back(position);
    return left;
  });
  counts_.absent.add(static_cast<uint64_t>(std::ranges::count(locations, nullptr)));
  return locations;
}

std::vector<bool> StoreClient::exists(std::span<const std::string_view> keys,
                                      Clock::time_point until) {
  require_open();
  for (const std::string_view key : keys) require_key(key);
  std::vector<bool> there(keys.size());
  ask_until_known(keys, until, [&](Keys some, const std::vector<std::size_t>& positions) {
    const Exists::Answer answer = link_.ask(Exists{std::move(some)}, until);
    std::vector<std::size_t> left;
    for (std::size_t i = 0; i < positions.size(); ++i) {
      const Presence presence = answer.presences.at(i);
      if (presence == Presence::kUnknown) left.push_back(positions[i]);
      there[positions[i]] = presence == Presence::kPresent;
    }
    return left;
  });
  return there;
}

Stat::Answer StoreClient::stat(std::span<const std::string_view> keys, Clock::time_point until) {
  require_open();
  for (const std::string_view key : keys) require_key(key);
  Stat::Answer whole;
  ask_until_known(keys, until, [&](Keys, const std::vector<std::size_t>&) {
    whole = link_.ask(Stat{Keys(keys.begin(), keys.end())}, until);
    std::vector<std::size_t> left;
    for (std::size_t i = 0; i < whole.objects.size(); ++i)
      if (whole.objects[i].presence == Presence::kUnknown) left.push_back(i);
    return left;
  });
  return whole;
}

std::vector<Removed> StoreClient::remove(std::span<const std::string_view> keys, bool force,
                                         Clock::time_point until) {
  require_open();
  for (const std::string_view key : keys) require_key(key);
  std::vector<Removed> outcomes(keys.size());
  ask_until_known(keys, until, [&](Keys some, const std::vector<std::size_t>& positions) {
    const Remove::Answer answer = link_.ask(Remove{std::move(some), force}, until);
    std::vector<std::size_t> left;
    for (std::size_t i = 0; i < positions.size(); ++i) {
      outcomes[positions[i]] = answer.outcomes.at(i);
      if (answer.outcomes[i] == Removed::kUnknown) left.push_back(positions[i]);
    }
    return left;
  });
  return outcomes;
}

uint64_t StoreClient::remove_groups(std::span<const uint64_t> groups, Clock::time_point until) {
  require_open();
  return link_.ask(RemoveGroup{{groups.begin(), groups.end()}}, until).removed;
}

uint64_t StoreClient::remove_prefix(std::string_view prefix, Clock::time_point until) {
  require_open();
  uint64_t removed = 0;
  uint64_t cursor = 0;
  do {
    const RemovePrefix::Answer answer = link_.ask(RemovePrefix{prefix, cursor}, until);
    removed += answer.removed;
    cursor = answer.cursor;
  } while (cursor != 0);
  return removed;
}

}  // namespace inlay::store
