// Choice of the path that the next slice takes, from estimates that the paths' completions teach.
//
// Pure: times are arguments, nothing is locked, allocated or sent. Calls for one path need to be
// serialized by the caller. `inlay.transfer.reference.spray` has the same rules and arithmetic; on
// the same history both decide alike.
//
// Cost: posted() and completed() together about 10 ns, choose() 2 ns per path.
// Source: the form of the prediction follows TENT (Mooncake); estimates here have a memory, and a
// slice is bound when a path has room for it, not when its transfer is submitted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

#include "../core/time_ns.h"

namespace inlay::transfer {

// What was expected of one slice when it was posted; its completion hands it back.
struct Ticket {
  TimeNs sent = 0;
  double service_s = 0.0;    // of the bytes ahead of it and its own
  double predicted_s = 0.0;  // until its completion
  bool alone = false;        // nothing was in flight
};

// What one path is expected to do, learnt from what it did. A slice is expected to complete
// `beta1 * bytes ahead / bandwidth + beta0` after it is posted, its own bytes included: beta1 is
// how many times slower than its link the path is, beta0 what every slice takes however small.
// What was learnt counts half after 30 ms in which the path was busy.
class PathEstimate {
 public:
  // `bandwidth` of the link in bytes/s, above 0; a guess is replaced by the first sample.
  // `base_s` is what a slice of no bytes takes: a measured round trip, rather too long than too
  // short.
  PathEstimate(double bandwidth, double base_s, TimeNs now);

  // A slice was handed to the path; its completion needs the ticket.
  Ticket posted(std::size_t bytes, TimeNs now);
  // A slice has done its work: its time teaches the estimate.
  void completed(std::size_t bytes, const Ticket& ticket, TimeNs now);
  // A slice left the path without an answer: its connection was closed, or it was revoked.
  void dropped(std::size_t bytes);
  // Begins again with a window of 4 slices, which doubles every 10 ms.
  void restart(TimeNs now);
  // Forgets, while the path is idle, half of what sets it apart from its link every second.
  // choose() calls it.
  void age(TimeNs now) {
    if (attempts_ == 0 && now - aged_ >= kAge) forget(now);
  }

  // How long a slice would take if it were posted now.
  double predicted_s(std::size_t bytes, double penalty = 1.0) const {
    const double ahead =
        static_cast<double>(inflight_bytes_) + penalty * static_cast<double>(bytes);
    return per_byte_s_ * ahead + beta0_s_;
  }
  // Whether a slice may be posted now. An idle path takes one of any size.
  bool has_room(std::size_t bytes, TimeNs now) const;
  // Whether the path is idle and has taught nothing for 100 ms.
  bool is_old(TimeNs now) const { return attempts_ == 0 && now - last_ >= kOld; }
  // Whether a slice takes, or took, far longer than the path's usual error explains.
  bool is_outlier(const Ticket& ticket, TimeNs now) const;

  std::size_t window_bytes(TimeNs now) const;  // how many may be in flight
  std::size_t slice_bytes() const { return slice_bytes_; }
  std::size_t inflight_bytes() const { return inflight_bytes_; }
  int attempts() const { return attempts_; }
  double bandwidth() const { return bandwidth_; }
  double beta0_s() const { return beta0_s_; }
  double beta1() const { return beta1_; }
  double bytes_per_s() const { return bytes_per_s_; }  // bandwidth / beta1
  double error_s() const { return error_s_; }          // mean of |latency - predicted|

 private:
  static constexpr TimeNs kOld = 100 * kMillisecond;
  static constexpr TimeNs kAge = 1'000 * kMillisecond;

  void note_lowest(double candidate_s);
  void learn(bool old);
  void forget(TimeNs now);
  void resize();

  double bandwidth_;
  double beta0_s_;
  double beta1_ = 1.0;
  double bytes_per_s_ = 0.0;
  double per_byte_s_ = 0.0;
  double error_s_ = 0.0;
  std::size_t inflight_bytes_ = 0;
  std::size_t slice_bytes_ = 0;
  std::size_t window_bytes_ = 0;
  int attempts_ = 0;
  bool restarted_ = false;
  TimeNs restarted_at_ = 0;
  TimeNs mark_;    // up to here time is accounted for
  TimeNs last_;    // of the last completion
  TimeNs newest_;  // the last `sent` among completed slices
  TimeNs aged_;

  // Since the last sample.
  double busy_s_ = 0.0;
  double service_s_ = 0.0;  // of service_bytes_
  double error_sum_s_ = 0.0;
  std::size_t service_bytes_ = 0;
  int slices_ = 0;
  // Of the slice that took the least beside the service of its bytes.
  double rest_s_ = std::numeric_limits<double>::infinity();
  double rest_latency_s_ = 0.0;
  std::size_t rest_bytes_ = 0;

  double idle_s_ = 0.0;  // taken for idle since the path last was idle or a slice was overtaken
  double all_busy_s_ = 0.0;
  double all_service_s_ = 0.0;
  int64_t bucket_ = 0;  // of the two of half a second that hold the lowest beta0
  double lowest_s_ = std::numeric_limits<double>::infinity();
  double lowest_before_s_ = std::numeric_limits<double>::infinity();
};

// One way for the slices of one request: its estimate, and what the request thinks of it.
struct PathView {
  PathEstimate* estimate;
  double penalty = 1.0;  // how much dearer than their size its bytes are expected to be
  bool open = true;      // whether it may be taken at all
};

// The next slice: so many bytes on that path. No path says: wait for a completion.
struct Choice {
  int path = -1;
  std::size_t bytes = 0;
  explicit operator bool() const { return path >= 0; }
};

// Picks the path on which the next slice is expected to complete first, and the slice's size. If
// that path has no room the slice waits: it would still complete there first. A path that has been
// idle for so long that its estimate is old gets a small slice of a large batch when others carry
// load, if that is expected to cost no more than 5 ms or to end before the batch. Of equals the
// first is taken, so the order of `paths` is to be fixed. `remaining_bytes` is what the batch has
// left to draw, at least 1.
Choice choose(std::span<const PathView> paths, std::size_t remaining_bytes, TimeNs now);

}  // namespace inlay::transfer
