// The lease under which writes travel on a lane: when their target lands them no more.
//
//   none --ask()--> asked --answered()--> held --no writes for a while--> none
//
// The answer to a question tells the target's clock; while writes are unanswered, the next question
// repeats that time, and the target lands what the lane brings until 2 s after it. So no delay on
// the way, and no stop of either process, makes the lease longer, and nobody's clocks are compared.
// Questions go over any lane, so that one which is busy or cut gets its lease, too.
//
// Pure: the clock is an argument. For one thread at a time.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

#include "../net/socket.h"

namespace inlay::transfer {

class LaneLease {
 public:
  using Time = net::Clock::time_point;
  // Of the target's clock, which goes on while the machine sleeps.
  static constexpr std::chrono::milliseconds kLength{2000};
  // Renewed so often while writes are unanswered.
  static constexpr std::chrono::milliseconds kRenewAfter{500};
  // Of this engine's clock: so long after the last answer the lease is over, with room for clocks
  // that do not run at the same speed.
  static constexpr std::chrono::milliseconds kOverAfter{2500};

  // A write that is sent now has time enough to arrive.
  bool good(Time now) const { return held_ && now - sure_ < kUseFor; }
  // The time to repeat in a question that is to be asked now, 0 for a new lease; none while a
  // question is not answered. `writes`: some are unanswered.
  std::optional<uint64_t> ask(bool writes);
  // The answer to the question.
  void answered(uint64_t target_time, Time now);
  // There will be none.
  void not_answered() { asking_ = false; }
  // While writes are unanswered: when to ask.
  Time renew_at() const { return asking_ ? Time::max() : told_ + kRenewAfter; }
  // While writes are unanswered: from then on they cannot land.
  Time over_at() const { return told_ + kOverAfter; }

 private:
  static constexpr std::chrono::milliseconds kUseFor{1500};

  bool held_ = false;
  bool asking_ = false;
  bool renewing_ = false;  // the question repeats a time
  uint64_t target_time_ = 0;
  Time told_{};  // when the target's time was
  Time sure_{};  // when the time was told that the lease is known to count from
};

}  // namespace inlay::transfer
