// The initiator's side of a lease for writes; see fabric_target.h.
//
//   none --want()--> asked --granted()--> held --beat(), no writes for 1 s--> none
//
// Pure: the clock is an argument. Questions lack the connection's number.
#pragma once

#include <cstdint>
#include <optional>

#include "../net/socket.h"
#include "fabric_words.h"

namespace inlay::transfer {

class FabricLease {
 public:
  using Time = net::Clock::time_point;

  bool held() const { return state_ == State::kHeld; }
  // A write waits for it: what to ask, unless that is asked already.
  std::optional<FabricQuestion> want();
  // The target's answer to a question with that number. True: it is held from now on.
  bool granted(uint64_t number, uint64_t target_time, Time now);
  // A write is complete.
  void wrote(Time now) { last_write_ = now; }

  struct Beat {
    std::optional<FabricQuestion> question;
    bool lapsed = false;  // no answer came while writes were out; the target closes the connection
  };
  Beat beat(Time now, bool writes_are_out);

 private:
  enum class State : uint8_t { kNone, kAsked, kHeld };
  FabricQuestion ask();

  State state_ = State::kNone;
  uint64_t number_ = 0;
  uint64_t target_time_ = 0;  // of the last answer
  bool asking_ = false;
  Time renewed_{};
  Time last_write_{};
};

}  // namespace inlay::transfer
