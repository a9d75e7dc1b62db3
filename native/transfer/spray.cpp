#include "spray.h"

#include <algorithm>
#include <cmath>

namespace inlay::transfer {

namespace {

constexpr std::size_t kMinSlice = 64 << 10;
constexpr std::size_t kMaxSlice = 2 << 20;
constexpr std::size_t kMaxWindow = 16 << 20;
constexpr std::size_t kWindowSlices = 4;
constexpr std::size_t kTailSlices = 8;
constexpr int kMaxAttempts = 256;
constexpr double kSliceS = 0.0004;
constexpr double kWindowS = 0.010;

constexpr double kHalfLifeS = 0.030;
constexpr double kSampleS = 0.004;
constexpr int kSampleSlices = 32;
constexpr double kMaxSampleS = 0.010;
constexpr double kMaxRise = 4.0;
constexpr double kMinBeta0S = 1e-6;
constexpr double kMinBeta1 = 1.0 / 64;
constexpr double kMaxBeta1 = 64.0;
constexpr TimeNs kBeta0Memory = 500 * kMillisecond;
constexpr double kProbeSlackS = 0.005;
constexpr TimeNs kRestartStep = 10 * kMillisecond;
constexpr TimeNs kMaxDoublings = 12;
constexpr double kOutlierErrors = 8.0;
constexpr double kOutlierS = 0.020;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

double seconds(TimeNs span) { return static_cast<double>(span) * 1e-9; }

// The weight of the last `part_s` of `whole_s` seen so far. While less than the memory has been
// seen all of it counts alike, so the first sample replaces what the link promised. An old estimate
// is worth as much as one sample.
double weight_of(double part_s, double whole_s, bool old) {
  const double part = 1.0 - std::exp2(-part_s / kHalfLifeS);
  const double whole = 1.0 - std::exp2(-whole_s / kHalfLifeS);
  const double weight = whole > 0.0 ? part / whole : 1.0;
  return old ? std::max(weight, 0.5) : weight;
}

}  // namespace

PathEstimate::PathEstimate(double bandwidth, double base_s, TimeNs now)
    : bandwidth_(bandwidth),
      beta0_s_(std::max(base_s, kMinBeta0S)),
      mark_(now),
      last_(now),
      newest_(now),
      aged_(now) {
  resize();
}

Ticket PathEstimate::posted(std::size_t bytes, TimeNs now) {
  if (attempts_ == 0) {
    mark_ = std::max(mark_, now);
    idle_s_ = 0.0;
  }
  inflight_bytes_ += bytes;
  ++attempts_;
  const double service_s = per_byte_s_ * static_cast<double>(inflight_bytes_);
  return {now, service_s, service_s + beta0_s_, attempts_ == 1};
}

void PathEstimate::completed(std::size_t bytes, const Ticket& ticket, TimeNs now) {
  dropped(bytes);
  now = std::max({now, mark_, ticket.sent});  // clocks are read before locks are taken
  double elapsed_s = seconds(now - mark_);
  const double latency_s = seconds(now - ticket.sent);
  const bool old = ticket.alone && ticket.sent - last_ >= kOld;
  mark_ = last_ = now;
  busy_s_ += elapsed_s;
  ++slices_;
  error_sum_s_ += std::abs(latency_s - ticket.predicted_s);
  // A slice that found the path idle is served from beta0 after it was sent.
  const double since_s = std::max(latency_s - beta0_s_, 0.0);
  const double idle_s = std::max(elapsed_s - since_s, 0.0);
  if (ticket.sent < newest_) {
    // It was overtaken: the path was not idle when a later one seemed to find it so.
    elapsed_s += std::min(idle_s_, since_s);
    idle_s_ = 0.0;
  } else {
    elapsed_s -= idle_s;
    idle_s_ += idle_s;
    newest_ = ticket.sent;
  }
  if (idle_s == 0.0 || ticket.service_s >= std::min(beta0_s_, kSliceS)) {
    // What is too short to be told from beta0 tells nothing of the rate.
    service_s_ += elapsed_s;
    service_bytes_ += bytes;
  }
  // Behind others a slice waits, too: its time can lower beta0 and not raise it.
  const double rest_s = latency_s - per_byte_s_ * static_cast<double>(bytes);
  if ((ticket.alone || rest_s < beta0_s_) && rest_s < rest_s_) {
    rest_s_ = rest_s;
    rest_latency_s_ = latency_s;
    rest_bytes_ = bytes;
  }
  if (old || busy_s_ >= kSampleS || slices_ >= kSampleSlices) {
    learn(old);
    aged_ = now;
  }
}

void PathEstimate::dropped(std::size_t bytes) {
  inflight_bytes_ -= bytes;
  --attempts_;
}

void PathEstimate::restart(TimeNs now) {
  restarted_ = true;
  restarted_at_ = now;
}

bool PathEstimate::has_room(std::size_t bytes, TimeNs now) const {
  if (attempts_ == 0) return true;
  return attempts_ < kMaxAttempts && inflight_bytes_ + bytes <= window_bytes(now);
}

bool PathEstimate::is_outlier(const Ticket& ticket, TimeNs now) const {
  const double latency_s = seconds(now - ticket.sent);
  return latency_s > ticket.predicted_s + std::max(kOutlierErrors * error_s_, kOutlierS);
}

std::size_t PathEstimate::window_bytes(TimeNs now) const {
  const std::size_t first = kWindowSlices * slice_bytes_;
  if (all_service_s_ == 0.0) return first;
  if (!restarted_) return window_bytes_;
  const TimeNs steps = std::max<TimeNs>(now - restarted_at_, 0) / kRestartStep;
  return std::min(window_bytes_, first << std::min(steps, kMaxDoublings));
}

void PathEstimate::note_lowest(double candidate_s) {
  // The lowest of one half to one second, at the cost of two numbers.
  const int64_t bucket = last_ / kBeta0Memory;
  if (bucket != bucket_) {
    lowest_before_s_ = bucket == bucket_ + 1 ? lowest_s_ : kInfinity;
    lowest_s_ = kInfinity;
    bucket_ = bucket;
  }
  lowest_s_ = std::min(lowest_s_, candidate_s);
}

void PathEstimate::learn(bool old) {
  if (service_s_ > 0.0) {
    const double span_s = std::min(service_s_, kMaxSampleS);
    all_service_s_ += span_s;
    const double weight = weight_of(span_s, all_service_s_, old);
    double sample = bandwidth_ * service_s_ / static_cast<double>(service_bytes_);
    // A stall is no rate: it is one sample, however long.
    if (weight < 1.0) sample = std::min(sample, kMaxRise * beta1_);
    beta1_ = std::clamp(beta1_ + weight * (sample - beta1_), kMinBeta1, kMaxBeta1);
  }
  const double span_s = std::min(busy_s_, kMaxSampleS);
  all_busy_s_ += span_s;
  const double weight = weight_of(span_s, all_busy_s_, old);
  if (rest_s_ < kInfinity) {
    // By the rate as it is known now: what a slow link took is no part of beta0.
    const double service_s = beta1_ / bandwidth_ * static_cast<double>(rest_bytes_);
    note_lowest(rest_latency_s_ - service_s);
  }
  const double lowest_s = std::min(lowest_s_, lowest_before_s_);
  if (lowest_s < kInfinity) {
    beta0_s_ = std::max(beta0_s_ + weight * (lowest_s - beta0_s_), kMinBeta0S);
  }
  error_s_ += weight * (error_sum_s_ / static_cast<double>(slices_) - error_s_);
  busy_s_ = error_sum_s_ = service_s_ = 0.0;
  slices_ = 0;
  service_bytes_ = 0;
  rest_s_ = kInfinity;
  resize();
}

void PathEstimate::forget(TimeNs now) {
  const TimeNs steps = (now - aged_) / kAge;
  aged_ += steps * kAge;
  beta1_ = 1.0 + (beta1_ - 1.0) * std::exp2(-static_cast<double>(steps));
  resize();
}

void PathEstimate::resize() {
  per_byte_s_ = beta1_ / bandwidth_;
  bytes_per_s_ = bandwidth_ / beta1_;
  slice_bytes_ = kMinSlice;
  while (slice_bytes_ < kMaxSlice &&
         static_cast<double>(2 * slice_bytes_) <= bytes_per_s_ * kSliceS) {
    slice_bytes_ *= 2;
  }
  const double wanted =
      std::min(bytes_per_s_ * (kWindowS + beta0_s_), static_cast<double>(kMaxWindow));
  window_bytes_ = std::max(static_cast<std::size_t>(wanted), kWindowSlices * slice_bytes_);
}

Choice choose(std::span<const PathView> paths, std::size_t remaining_bytes, TimeNs now) {
  const std::size_t probe_bytes = std::min(remaining_bytes, kMinSlice);
  int best = -1;
  int old = -1;
  double best_s = kInfinity;
  double old_s = kInfinity;
  int num_open = 0;
  int num_busy = 0;
  double bytes_per_s = 0.0;
  for (int i = 0; i < static_cast<int>(paths.size()); ++i) {
    const PathView& path = paths[static_cast<std::size_t>(i)];
    if (!path.open) continue;
    path.estimate->age(now);
    ++num_open;
    num_busy += path.estimate->attempts() > 0;
    bytes_per_s += path.estimate->bytes_per_s();
    const double predicted_s = path.estimate->predicted_s(probe_bytes, path.penalty);
    if (predicted_s < best_s) {
      best = i;
      best_s = predicted_s;
    }
    if (predicted_s < old_s && path.estimate->is_old(now)) {
      old = i;
      old_s = predicted_s;
    }
  }
  if (best < 0) return {};
  const bool large = remaining_bytes >= kTailSlices * kMinSlice;
  const double harmless_s =
      std::max(best_s + kProbeSlackS, static_cast<double>(remaining_bytes) / bytes_per_s);
  if (old >= 0 && num_busy > 0 && large && old_s <= harmless_s) {
    return {old, probe_bytes};
  }
  const PathEstimate& estimate = *paths[static_cast<std::size_t>(best)].estimate;
  std::size_t bytes = estimate.slice_bytes();
  if (num_open > 1) {  // the last slices are small, so that all paths end at about the same time
    while (bytes > kMinSlice && remaining_bytes < kTailSlices * bytes) bytes /= 2;
  }
  bytes = std::min(bytes, remaining_bytes);
  return estimate.has_room(bytes, now) ? Choice{best, bytes} : Choice{};
}

}  // namespace inlay::transfer
