#include "fabric_lease.h"

namespace inlay::transfer {

using namespace std::chrono_literals;

namespace {

constexpr auto kRenewAfter = 500ms;
constexpr auto kLapsedAfter = 2s;  // the target's own time

}  // namespace

FabricQuestion FabricLease::ask() {
  asking_ = true;
  FabricQuestion question{.ask = FabricAsk::kLease};
  question.lease = number_;
  question.last_time = target_time_;
  return question;
}

std::optional<FabricQuestion> FabricLease::want(Time now) {
  if (state_ != State::kNone) return std::nullopt;
  state_ = State::kAsked;
  target_time_ = 0;
  asked_ = now;
  ++number_;
  return ask();
}

bool FabricLease::granted(uint64_t number, uint64_t target_time, Time now) {
  if (number != number_ || state_ == State::kNone) return false;
  asking_ = false;
  renewed_ = now;
  target_time_ = target_time;
  const bool is_new = state_ == State::kAsked;
  if (is_new) last_use_ = now;
  state_ = State::kHeld;
  return is_new;
}

FabricLease::Beat FabricLease::beat(Time now, bool some_are_out) {
  if (state_ != State::kHeld) return {};
  if (!some_are_out && now - last_use_ > return_after_) {
    state_ = State::kNone;
    asking_ = false;
    FabricQuestion question{.ask = FabricAsk::kReturn};
    question.lease = number_;
    return {question, false};
  }
  Beat beat;
  beat.lapsed = some_are_out && now - renewed_ > kLapsedAfter;
  if (!asking_ && now - renewed_ >= kRenewAfter) beat.question = ask();
  return beat;
}

}  // namespace inlay::transfer
