#include "snapshot.h"

#include <algorithm>
#include <bit>
#include <cctype>
#include <cmath>

#include "dispatch.h"

namespace inlay::transfer {

namespace {

constexpr double kRecentSlices = 32;

}  // namespace

std::size_t latency_bucket(double seconds) {
  const double us = std::ceil(seconds * 1e6);
  if (!(us > 1)) return 0;
  constexpr double kLongest = uint64_t{1} << (kLatencyBuckets - 2);
  if (us > kLongest) return kLatencyBuckets - 1;
  return static_cast<std::size_t>(std::bit_width(static_cast<uint64_t>(us) - 1));
}

void PathCounts::completed(Op op, uint64_t bytes, double predicted_s, double measured_s) {
  (op == Op::kRead ? read_bytes : written_bytes) += bytes;
  ++slices;
  const double error = std::abs(measured_s - predicted_s);
  ++latencies[latency_bucket(measured_s)];
  latency_s += measured_s;
  error_s += error;
  const double weight = 1 / std::min(static_cast<double>(slices), kRecentSlices);
  recent_predicted_s += weight * (predicted_s - recent_predicted_s);
  recent_measured_s += weight * (measured_s - recent_measured_s);
  recent_error_s += weight * (error - recent_error_s);
}

std::string_view name_of(PathState state) {
  switch (state) {
    case PathState::kReady:
      return "ready";
    case PathState::kPaused:
      return "paused";
    case PathState::kClosed:
      return "closed";
  }
  return {};
}

std::string_view name_of(Refusal refusal) {
  switch (refusal) {
    case Refusal::kToken:
      return "token";
    case Refusal::kVersion:
      return "version";
    case Refusal::kGarbage:
      return "garbage";
    case Refusal::kTooSlow:
      return "too_slow";
    case Refusal::kCrowd:
      return "crowd";
    case Refusal::kTooMany:
      return "too_many";
    case Refusal::kLeft:
      return "left";
  }
  return {};
}

std::string word_of(Status status) {
  std::string_view constant;
  switch (status) {
#define INLAY_STATUS(code, name, python_class) \
  case Status::name:                           \
    constant = #name;                          \
    break;
#include "../core/status.def"
#undef INLAY_STATUS
  }
  if (status == Status::kOk || constant.empty()) return {};
  std::string word;
  for (const char letter : constant.substr(1)) {
    if (std::isupper(static_cast<unsigned char>(letter)) != 0 && !word.empty()) word += '_';
    word += static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
  }
  return word;
}

std::vector<PathSnapshot> Dispatch::snapshot(const std::string& peer) const {
  std::vector<PathSnapshot> all;
  const std::lock_guard lock(mutex_);
  const Clock::time_point now = Clock::now();
  for (const auto& [key, record] : records_) {
    PathSnapshot& path = all.emplace_back();
    path.peer = peer;
    path.transport = key.first;
    path.name = key.second;
    path.counts = record.counts;
    bool lives = false;
    bool works = false;
    for (const auto& entry : entries_) {
      if (entry->record != &record) continue;
      path.inflight_slices += entry->posted;
      if (entry->estimate) {
        path.inflight_bytes += entry->estimate->inflight_bytes();
        path.bandwidth = std::max(path.bandwidth, entry->estimate->bytes_per_s());
      }
      if (entry->lost) continue;
      lives = true;
      works |= entry->rests_until <= now;
    }
    if (record.held) {
      path.state = PathState::kPaused;
      path.reason = "operator";
    } else if (!lives) {
      path.reason = word_of(record.ended);
    } else if (!works) {
      path.state = PathState::kPaused;
      path.reason = word_of(record.failed);
    } else {
      path.state = PathState::kReady;
    }
  }
  return all;
}

bool Dispatch::hold(const std::string& transport, const std::string& name, bool held) {
  const std::lock_guard lock(mutex_);
  const auto found = records_.find({transport, name});
  if (found == records_.end()) return false;
  found->second.held = held;
  return true;
}

}  // namespace inlay::transfer
