// What a process does with objects: puts them into room that the master granted, and reads them
// where they lie.
//
// A call's keys and values are memory of the caller, which stays until the call returns. All calls
// may be made by several threads at once. They throw ArgumentError, and StoreFailure: kTimeout,
// kUnavailable, kClosed, kRefused, kVersion beside what is said below.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "client_counts.h"
#include "lanes.h"
#include "locations.h"
#include "touches.h"

namespace inlay::store {

// Remote payloads up to this move together with their headers, in one piece.
inline constexpr uint64_t kGatherUpTo = uint64_t{64} << 10;
// Between questions whose answer was that the master does not know yet.
inline constexpr std::chrono::milliseconds kRecoveryPause(10);

struct Part {
  const std::byte* data;
  uint64_t bytes;
};

struct Value {
  std::string_view key;
  std::span<const Part> parts;  // one behind the other
  std::string_view parent{};    // key of what it is worth nothing without; empty: none

  uint64_t bytes() const;
};

struct PutOptions {
  Placement placement;
  IfExists if_exists = IfExists::kKeep;
  uint16_t flags = 0;  // kSoftPin, kHardPin
  uint64_t group = 0;
  uint32_t recompute_us = 0;  // to make a value again where its parent is there; 0: unknown
  bool on_disk = false;       // a disk has it, too, before put() returns
};

// [from, from + bytes) of a payload, and where it is wanted.
struct Target {
  uint64_t from;
  std::byte* to;
  uint64_t bytes;
};

struct Read {
  std::string_view key;
  LocationPtr location;
  std::span<const Target> targets;
};

// A read of which no replica has the bytes that were put.
struct Damage {
  std::size_t index;  // of the read
  std::string text;
};

// A value that a put left out, as the store has no room for it.
struct LeftOut {
  std::size_t index;
  bool for_good;  // waiting mends it not: it is larger than any segment, say
  std::string text;
};

// An object's bytes in place, or a copy of them where they are not of this host.
struct ObjectView {
  std::span<const std::byte> bytes;
  uint64_t generation = 0;
  ReachPtr reach;  // keeps the mapping
  PinBoard::Pin pin;
  std::unique_ptr<std::byte[]> copy;
};

class StoreClient {
 public:
  struct Options {
    bool may_map = true;  // segments of this host
  };
  // Without an engine only segments of this host are reached. Link and engine outlive the client.
  StoreClient(MasterLink& link, transfer::Engine* engine, Options options);
  ~StoreClient();

  // By position. Throws kFull: also where all are stored, but not on a disk as wanted. With
  // `left_out` all that have room are stored, and the others, whose outcome is kUnknown, told of
  // there; it waits for room for `room_wait` then, once, and shortly for smaller ones later.
  std::vector<Commit::Result> put(std::span<const Value> values, const PutOptions& options,
                                  Clock::time_point until, std::vector<LeftOut>* left_out = nullptr,
                                  std::chrono::milliseconds room_wait = kAsLongAsItHas);

  // Where they are; null: there is no such object. What lies on a disk alone is brought into
  // memory. Of some there are no spots: they are found when others have been read.
  std::vector<LocationPtr> find(std::span<const std::string_view> keys, Clock::time_point until);
  // Those that could be read as they were found. Find the others again, and read again, but for the
  // damaged ones. Throws kDamaged unless it is told where to say so.
  std::vector<bool> read(std::span<const Read> reads, Clock::time_point until,
                         std::vector<Damage>* damaged = nullptr);
  // None: there is no such object. `verify`: the payload's checksum, too.
  std::optional<ObjectView> view(std::string_view key, bool verify, Clock::time_point until);

  std::vector<bool> exists(std::span<const std::string_view> keys, Clock::time_point until);
  Stat::Answer stat(std::span<const std::string_view> keys, Clock::time_point until);
  std::shared_ptr<const Reaches::List> segments(uint64_t version, Clock::time_point until) {
    return reaches_.of_version(version, until);
  }
  std::vector<Removed> remove(std::span<const std::string_view> keys, bool force,
                              Clock::time_point until);
  uint64_t remove_groups(std::span<const uint64_t> groups, Clock::time_point until);
  uint64_t remove_prefix(std::string_view prefix, Clock::time_point until);

  // Also when it is closed.
  const ClientCounts& counts() const { return counts_; }

  // Gives back what it holds. Later calls throw kClosed.
  void close();

 private:
  struct Placed;

  // client_put.cpp
  std::vector<std::size_t> put_in_lane(Lane lane, std::span<const Value> values,
                                       std::vector<std::size_t> pending, const PutOptions& options,
                                       std::vector<Commit::Result>& results,
                                       Clock::time_point until);
  std::vector<std::size_t> commit(Lane& lane, std::span<const Value> values,
                                  std::vector<Placed> placed, const PutOptions& options,
                                  std::vector<Commit::Result>& results, Clock::time_point until);
  void count(std::span<const Value> values, std::span<const Commit::Result> results);
  void remember(const Lane& lane, std::string_view key, const Placed& placed,
                Clock::time_point asked);

  // client_write.cpp
  bool write(Lane& lane, std::span<const Value> values, std::vector<Placed>& placed,
             Clock::time_point until);
  bool write_again(Lane& lane, std::span<const Value> values, const std::vector<Placed>& placed,
                   bool as_filler, Clock::time_point until);

  // client_read.cpp
  enum class Outcome : uint8_t { kRead, kStale, kDamaged, kUnreachable };
  struct Fetch;
  Outcome read_mapped(const Read& read, const Spot& spot);
  void read_remote(std::span<const Read> reads, std::vector<Fetch>& fetches,
                   Clock::time_point until);

  void require_open() const;

  MasterLink& link_;
  transfer::Engine* const engine_;
  Reaches reaches_;
  Lanes lanes_;
  Locations locations_;
  Touches touches_;
  ClientCounts counts_;
  std::atomic<bool> closed_{false};
};

// Throws ArgumentError.
void require_key(std::string_view key);

// What of a transfer's failure a call of the store says.
StoreFailure failure_of(const TransferFailure& failure);

}  // namespace inlay::store
