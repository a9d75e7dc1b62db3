// What is counted of paths and of the port, for metrics and for people.
//
// Counts of a path outlive its connections: they go by transport and name, of which a peer has few.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "../core/status.h"
#include "request.h"

namespace inlay::transfer {

// Slices by how long they took: bucket i has those of at most 2^i us, the last one all longer ones.
inline constexpr std::size_t kLatencyBuckets = 26;
std::size_t latency_bucket(double seconds);

struct PathCounts {
  uint64_t read_bytes = 0;  // of slices that are complete
  uint64_t written_bytes = 0;
  uint64_t slices = 0;
  std::array<uint64_t, kLatencyBuckets> latencies{};
  double latency_s = 0;  // sums
  double error_s = 0;    // of |latency - predicted|
  // Means of about the last 32 slices.
  double recent_predicted_s = 0;
  double recent_measured_s = 0;
  double recent_error_s = 0;
  std::map<Status, uint64_t> retries;  // slices that had to be posted again, by why

  // About 10 ns.
  void completed(Op op, uint64_t bytes, double predicted_s, double measured_s);
};

// What a dispatcher keeps of a path.
struct PathRecord {
  PathCounts counts;
  bool held = false;            // by an operator
  Status ended = Status::kOk;   // the last connection of it
  Status failed = Status::kOk;  // the last slice that had to go another way
};

enum class PathState : uint8_t { kReady, kPaused, kClosed };
std::string_view name_of(PathState state);

struct PathSnapshot {
  std::string peer;  // its address
  std::string transport;
  std::string name;
  PathState state = PathState::kClosed;
  std::string reason;  // why it is not ready
  PathCounts counts;
  uint64_t inflight_bytes = 0;
  uint64_t inflight_slices = 0;
  double bandwidth = 0;  // bytes/s that it is expected to do; 0: not used yet
};

// Why the port closed a connection that did not prove itself.
enum class Refusal : uint8_t {
  kToken,    // it holds another
  kVersion,  // none in common
  kGarbage,  // it does not speak the protocol
  kTooSlow,  // no proof within the time for it
  kCrowd,    // too many without proof: the oldest goes
  kTooMany,  // connections in all
  kLeft,     // it went away: a token that it does not know, or an engine connected already
};
inline constexpr std::size_t kNumRefusals = 7;
std::string_view name_of(Refusal refusal);

// Written by the loop's thread, read by any.
struct PortCounts {
  std::array<std::atomic<uint64_t>, kNumRefusals> refused{};
  std::atomic<uint64_t> fenced{0};  // lanes shut so that nothing more lands through them

  void count(Refusal refusal) {
    refused[static_cast<std::size_t>(refusal)].fetch_add(1, std::memory_order_relaxed);
  }
};

// "peer_died" of kPeerDied; empty for kOk.
std::string word_of(Status status);

}  // namespace inlay::transfer
