// What engines of one host tell each other over the side channel. Both ends are the same processor,
// so messages are the memory of these structures; their version is in the offer.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <type_traits>

#include "../net/handshake.h"
#include "../net/process_memory.h"
#include "../net/side_channel.h"
#include "transport.h"

namespace inlay::transfer::shm {

constexpr uint32_t kVersion = 2;
constexpr std::string_view kName = "shm";

using Ticket = std::array<std::byte, 16>;

// Who may share memory: both have to agree in all of it.
struct Host {
  std::array<char, 40> boot{};  // of this start of the kernel
  uint64_t pid_namespace = 0;
  uint32_t user = 0;
  uint32_t zero = 0;
};
Host this_host();

struct Offer {  // of transport cuda, too
  uint32_t version = kVersion;
  int32_t pid = 0;
  uint64_t start_time = 0;
  Host host;
  net::SideName name{};
  Ticket ticket{};  // who presents it was told it over a connection that was proven
  net::ProcessMark mark;
};

// Why memory cannot be shared with that process; empty when it may be tried.
std::string difference(const Offer& offer);

// A segment's key.
struct Key {
  uint64_t base = 0;
  uint64_t shared = 0;  // 1: its memory can be mapped; 0: only read, as that of another process
};

enum class Kind : uint32_t {
  kHello = 1,  // -> ticket, engine, mark       kWelcome   <- status, whether it pulls, control page
  kMap,        // -> slot, epoch                kMapped    <- status, slot, epoch, the memory
  kPull,       // -> id, slot, epoch, stamp, ranges  kPulled    <- status, id
  kStop,       // -> id: to end a pull early, whose kPulled comes as ever
  kClosed,     //                               <- slot, epoch: unmap it
  kWelcome,
  kMapped,
  kPulled,
  kPullGranted,  // as kPull, with a u64 grant before the ranges: to segments that are guarded
};

struct Hello {
  Kind kind = Kind::kHello;
  uint32_t zero = 0;
  Ticket ticket{};
  net::EngineId engine{};
  net::ProcessMark mark;
};

struct Welcome {
  Kind kind = Kind::kWelcome;
  Status status = Status::kOk;
  uint16_t can_pull = 0;
  uint64_t connection = 0;  // names it in a fence
};

struct SegmentMessage {  // kMap, kMapped, kClosed
  Kind kind = Kind::kMap;
  Status status = Status::kOk;
  uint16_t zero = 0;
  uint32_t slot = 0;
  uint32_t epoch = 0;
};

struct PullMessage {  // kPull, followed by its ranges; kStop, kPulled
  Kind kind = Kind::kPull;
  Status status = Status::kOk;
  uint16_t num_ranges = 0;
  uint64_t id = 0;
  uint32_t slot = 0;
  uint32_t epoch = 0;
  net::ProcessStamp stamp;  // of the source
};

struct PullRange {
  uint64_t offset;  // in the target's segment
  uint64_t source;  // address in the initiator
  uint64_t length;
};
static_assert(sizeof(PullMessage) + sizeof(uint64_t) + net::kMaxRanges * sizeof(PullRange) <=
              net::kMaxSideMessage);

template <typename T>
std::span<const std::byte> bytes_of(const T& value) {
  static_assert(std::has_unique_object_representations_v<T>);
  return std::as_bytes(std::span<const T, 1>(&value, 1));
}

// The structure at the start of a message; none when it is shorter.
template <typename T>
std::optional<T> read_as(std::span<const std::byte> bytes) {
  static_assert(std::is_trivially_copyable_v<T>);
  if (bytes.size() < sizeof(T)) return {};
  T value;
  std::memcpy(&value, bytes.data(), sizeof(T));
  return value;
}

}  // namespace inlay::transfer::shm
