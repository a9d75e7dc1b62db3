#include "rail.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <utility>

namespace inlay::transfer {

namespace {

constexpr std::array<TimeNs, 5> kDelays = {100 * kMillisecond, 100 * kMillisecond,
                                           200 * kMillisecond, 400 * kMillisecond,
                                           500 * kMillisecond};
constexpr double kMaxRetries = 6.0;
constexpr TimeNs kLongPause = 60'000 * kMillisecond;
constexpr TimeNs kLongDelay = 2'000 * kMillisecond;
constexpr double kHalfLifeNs = 10e9;
constexpr TimeNs kSilence = 16 * kMillisecond;
constexpr TimeNs kLoneSilence = 60 * kMillisecond;

}  // namespace

Rail::Rail(TimeNs now, RailConfig config)
    : config_(config), next_(now + config.connect_timeout), counted_at_(now) {}

RailActions Rail::on(RailEvent event, TimeNs now, bool others_ready) {
  if (state_ == RailState::kClosed) return {};
  if (event == RailEvent::kClose) {
    state_ = RailState::kClosed;
    next_ = kNever;
    return {.close = true, .announce = true};
  }
  if (event == RailEvent::kTick && now < next_) return {};
  if (state_ == RailState::kPaused) return on_paused(event, now);
  switch (event) {
    case RailEvent::kConnected:
      if (state_ == RailState::kReady) return {};
      state_ = RailState::kReady;
      connecting_ = false;
      next_ = kNever;
      return {.announce = true};
    case RailEvent::kOutlier:
      return {.restart = state_ == RailState::kReady};
    case RailEvent::kSilence:
    case RailEvent::kSuspect:
      return others_ready && state_ == RailState::kReady ? pause(event, now) : RailActions{};
    case RailEvent::kHold:
      held_ = true;
      [[fallthrough]];
    case RailEvent::kRefused:
    case RailEvent::kError:
    case RailEvent::kLinkDown:
    case RailEvent::kTick:
      return pause(event, now);
    default:
      return {};
  }
}

RailActions Rail::pause(RailEvent reason, TimeNs now) {
  state_ = RailState::kPaused;
  reason_ = reason;
  connecting_ = false;
  paused_at_ = now;
  schedule(now);
  return {.close = !held_, .announce = true};
}

RailActions Rail::on_paused(RailEvent event, TimeNs now) {
  if (event == RailEvent::kHold && !held_) {
    held_ = true;
    reason_ = event;
    next_ = kNever;
    const bool probing = std::exchange(connecting_, false);
    return {.close = probing, .announce = true};
  }
  if (event == RailEvent::kRelease && held_) {
    held_ = false;
    return probe(now);
  }
  if (held_) return {};
  switch (event) {
    case RailEvent::kLinkUp:
      paused_at_ = now;
      return probe(now);
    case RailEvent::kConnected:
      if (!connecting_) return {};
      state_ = RailState::kReady;
      connecting_ = false;
      next_ = kNever;
      return {.restart = true, .announce = true};
    case RailEvent::kTick:
      if (!connecting_) return probe(now);
      [[fallthrough]];
    case RailEvent::kRefused:
    case RailEvent::kError:
    case RailEvent::kSilence:
    case RailEvent::kLinkDown:
      if (!connecting_) return {};
      connecting_ = false;
      schedule(now);
      return {.close = true};
    default:
      return {};
  }
}

RailActions Rail::probe(TimeNs now) {
  connecting_ = true;
  next_ = now + config_.connect_timeout;
  return {.close = true, .connect = true};
}

void Rail::schedule(TimeNs now) {
  if (held_) {
    next_ = kNever;
    return;
  }
  retries_ *= std::exp2(-static_cast<double>(now - counted_at_) / kHalfLifeNs);
  counted_at_ = now;
  const auto index = std::min(static_cast<std::size_t>(retries_ + 0.5), std::size(kDelays) - 1);
  next_ = now + (now - paused_at_ >= kLongPause ? kLongDelay : kDelays[index]);
  retries_ = std::min(retries_ + 1.0, kMaxRetries);
}

bool is_silent(uint32_t unacknowledged, TimeNs since_ack, TimeNs smoothed_round_trip) {
  if (unacknowledged == 0) return false;
  const TimeNs bound = std::max(kSilence, 3 * smoothed_round_trip);
  return since_ack > (unacknowledged == 1 ? std::max(kLoneSilence, bound) : bound);
}

std::string_view name_of(RailState state) {
  constexpr std::array<std::string_view, 4> kNames = {"connecting", "ready", "paused", "closed"};
  return kNames[static_cast<std::size_t>(state)];
}

std::string_view name_of(RailEvent event) {
  constexpr std::array<std::string_view, kNumRailEvents> kNames = {
      "tick",    "connected", "refused", "error", "silence", "suspect",
      "outlier", "link_down", "link_up", "hold",  "release", "close"};
  return kNames[static_cast<std::size_t>(event)];
}

}  // namespace inlay::transfer
