// The initiator's side of a lease for writes, or for all operations; see fabric_target.h.
//
//   none --want()--> asked --granted()--> held --beat(), none of its operations for a while--> none
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

  // It is returned when so long nothing was posted under it.
  explicit FabricLease(net::Clock::duration return_after) : return_after_(return_after) {}

  bool held() const { return state_ == State::kHeld; }
  // An operation waits for it: what to ask, unless that is asked already.
  std::optional<FabricQuestion> want(Time now);
  // Since when the target owes the answer to that; max() when it does not.
  Time waiting_since() const { return state_ == State::kAsked ? asked_ : Time::max(); }
  // The target's answer to a question with that number. True: it is held from now on.
  bool granted(uint64_t number, uint64_t target_time, Time now);
  // An operation under it is complete.
  void used(Time now) { last_use_ = now; }

  struct Beat {
    std::optional<FabricQuestion> question;
    bool lapsed = false;  // no answer came while some were out; the target closes the connection
  };
  Beat beat(Time now, bool some_are_out);

 private:
  enum class State : uint8_t { kNone, kAsked, kHeld };
  FabricQuestion ask();

  const net::Clock::duration return_after_;
  State state_ = State::kNone;
  uint64_t number_ = 0;
  uint64_t target_time_ = 0;  // of the last answer
  bool asking_ = false;
  Time asked_{};
  Time renewed_{};
  Time last_use_{};
};

}  // namespace inlay::transfer
