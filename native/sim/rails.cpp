#include "rails.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "../core/errors.h"

namespace inlay::sim {

using transfer::Rail;
using transfer::RailEvent;
using transfer::RailState;

namespace {

// As in the engine: native/transfer/tcp_rails.cpp, dispatch_draw.cpp, docs/design/transfer.md.
constexpr TimeNs kLookEvery = 4 * kMillisecond;
constexpr TimeNs kTold = 3 * kMillisecond;  // after a link has changed
constexpr int kHandshakeRoundTrips = 3;
constexpr std::size_t kTurnBytes = std::size_t{1} << 20;
constexpr int kMaxLooked = 32;

constexpr std::size_t kBoundSlice = std::size_t{64} << 10;

}  // namespace

Rails::Rails(RailsConfig config) : config_(std::move(config)) {
  const std::size_t count = config_.links.size();
  if (count == 0) throw ArgumentError("rails: needs at least one link");
  if (config_.believed.size() != count)
    throw ArgumentError("rails: needs as many believed rates as links");
  if (config_.until <= 0 || config_.bin <= 0 || config_.delay < 0)
    throw ArgumentError("rails: until and bin must be above 0, delay not below 0");
  for (std::size_t i = 0; i < count; ++i) {
    const auto& states = config_.links[i];
    if (!(config_.believed[i] > 0.0)) throw ArgumentError("rails: believed rates must be above 0");
    if (states.empty() || states.front().since != 0)
      throw ArgumentError("rails: the first state of a link must be at 0");
    if (!std::ranges::is_sorted(states, std::ranges::less_equal{}, &LinkState::since))
      throw ArgumentError("rails: states of a link must be in order of time");
    for (const LinkState& state : states)
      if (!(state.bytes_per_s >= 0.0) || !std::isfinite(state.bytes_per_s))
        throw ArgumentError("rails: rates of links must be finite and not below 0");
  }
  const transfer::RailConfig own{transfer::RailConfig{}.connect_timeout + 12 * config_.delay};
  for (std::size_t i = 0; i < count; ++i) {
    paths_.push_back({.rail = Rail(0, own)});
    tell(i, RailEvent::kConnected, 0);
    const auto& states = config_.links[i];
    bool up = true;
    for (const LinkState& state : states) {
      if (state.up != up && config_.link_events)
        at(state.since + kTold, state.up ? Kind::kLinkUp : Kind::kLinkDown, i);
      up = state.up;
    }
  }
  at(kLookEvery, Kind::kLook);
  outcome_.moved.assign(count, std::vector<double>(static_cast<std::size_t>(
                                   (config_.until + config_.bin - 1) / config_.bin)));
}

const LinkState& Rails::state_at(std::size_t path, TimeNs now) const {
  const auto& states = config_.links[path];
  return *std::prev(std::ranges::upper_bound(states, now, {}, &LinkState::since));
}

bool Rails::is_ready(const Path& path) const { return path.rail.state() == RailState::kReady; }

bool Rails::others_ready(std::size_t path) const {
  for (std::size_t i = 0; i < paths_.size(); ++i)
    if (i != path && is_ready(paths_[i])) return true;
  return false;
}

// When the last byte of a slice that is queued now has left; Rail::kNever if it never does.
TimeNs Rails::send(std::size_t index, std::size_t bytes, TimeNs now) {
  Path& path = paths_[index];
  const auto& states = config_.links[index];
  TimeNs time = std::max(now, path.free);
  auto left = static_cast<double>(bytes);
  while (time != Rail::kNever) {
    while (path.state + 1 < states.size() && states[path.state + 1].since <= time) ++path.state;
    const bool last = path.state + 1 == states.size();
    const TimeNs end = last ? Rail::kNever : states[path.state + 1].since;
    const double rate = states[path.state].up ? states[path.state].bytes_per_s : 0.0;
    const double span_s =
        last ? std::numeric_limits<double>::infinity() : static_cast<double>(end - time) * 1e-9;
    if (rate > 0.0 && left <= rate * span_s) {
      time += static_cast<TimeNs>(std::ceil(left / rate * 1e9));
      break;
    }
    if (rate > 0.0) left -= rate * span_s;
    time = end;
  }
  return path.free = time;
}

void Rails::at(TimeNs time, Kind kind, std::size_t path) {
  if (time >= config_.until) return;
  events_.push({time, order_++, kind, static_cast<uint32_t>(path), paths_[path].epoch});
}

RailsOutcome Rails::run(std::span<const RailsTransfer> transfers) {
  transfers_ = transfers;
  const std::size_t count = transfers.size();
  outcome_.begun.assign(count, -1);
  outcome_.done.assign(count, -1);
  in_turn_.assign(count, 0);
  for (const RailsTransfer& one : transfers) left_.push_back(one.bytes);
  unanswered_ = left_;
  for (uint32_t i = 0; i < config_.at_once && i < count; ++i) begin(next_++, 0);
  fill(0);
  while (true) {
    const TimeNs event = events_.empty() ? Rail::kNever : events_.top().at;
    const bool comes = config_.at_once == 0 && next_ < count;
    const TimeNs arrival = comes ? transfers[next_].begun : Rail::kNever;
    const TimeNs now = std::min(event, arrival);
    if (now >= config_.until) break;
    if (arrival <= event) {
      begin(next_++, now);
    } else {
      const Event happened = events_.top();
      events_.pop();
      handle(happened);
    }
    fill(now);
  }
  return std::move(outcome_);
}

void Rails::begin(uint32_t transfer, TimeNs now) {
  outcome_.begun[transfer] = now;
  if (config_.choice == PathChoice::kEngine) {
    waiting_.insert({turn_, transfer});
    return;
  }
  for (uint64_t& left = left_[transfer]; left > 0;) {
    const std::size_t bytes = std::min<uint64_t>(left, kBoundSlice);
    unbound_.push_back({transfer, bytes});
    left -= bytes;
  }
}

void Rails::handle(const Event& event) {
  const std::size_t path = event.path;
  switch (event.kind) {
    case Kind::kLook:
      look(event.at);
      return at(event.at + kLookEvery, Kind::kLook);
    case Kind::kLinkDown:
      return tell(path, RailEvent::kLinkDown, event.at);
    case Kind::kLinkUp:
      return tell(path, RailEvent::kLinkUp, event.at);
    case Kind::kTick:
      return tell(path, RailEvent::kTick, event.at);
    case Kind::kConnected:
      if (event.epoch == paths_[path].epoch && state_at(path, event.at).up)
        tell(path, RailEvent::kConnected, event.at);
      return;
    case Kind::kCompleted:
      if (event.epoch == paths_[path].epoch) complete(path, event.at);
  }
}

void Rails::tell(std::size_t index, RailEvent event, TimeNs now) {
  Path& path = paths_[index];
  const TimeNs before = path.rail.next_tick();
  const transfer::RailActions to_do = path.rail.on(event, now, others_ready(index));
  if (to_do.close) {
    ++path.epoch;
    path.free = now;
    path.state = 0;
    outcome_.again += path.flying.size();
    for (const Piece& piece : path.flying) unbound_.push_back({piece.transfer, piece.bytes});
    path.flying.clear();
  }
  if (to_do.connect && state_at(index, now).up)
    at(now + kHandshakeRoundTrips * 2 * config_.delay, Kind::kConnected, index);
  if (to_do.announce && is_ready(path))
    path.estimate = std::make_unique<transfer::PathEstimate>(
        config_.believed[index], 2e-9 * static_cast<double>(config_.delay), now);
  if (const TimeNs next = path.rail.next_tick(); next != before && next != Rail::kNever)
    at(next, Kind::kTick, index);
}

// What the kernel tells of acknowledgements: they come as long as the link moves bytes.
void Rails::look(TimeNs now) {
  for (std::size_t i = 0; i < paths_.size(); ++i) {
    const Path& path = paths_[i];
    if (!is_ready(path) || path.flying.empty() || !others_ready(i)) continue;
    const LinkState& state = state_at(i, now);
    if (state.up && state.bytes_per_s > 0.0) continue;
    const TimeNs since = std::max(state.since + config_.delay, path.flying.front().ticket.sent);
    if (transfer::is_silent(2, now - since, 2 * config_.delay)) tell(i, RailEvent::kSilence, now);
  }
}

void Rails::complete(std::size_t index, TimeNs now) {
  Path& path = paths_[index];
  const Piece piece = path.flying.front();
  path.flying.pop_front();
  if (config_.choice == PathChoice::kEngine)
    path.estimate->completed(piece.bytes, piece.ticket, now);
  if (!path.flying.empty()) at(path.flying.front().ends, Kind::kCompleted, index);
  outcome_.moved[index][static_cast<std::size_t>(now / config_.bin)] +=
      static_cast<double>(piece.bytes);
  if ((unanswered_[piece.transfer] -= piece.bytes) > 0) return;
  outcome_.done[piece.transfer] = now;
  if (config_.at_once > 0 && next_ < transfers_.size()) begin(next_++, now);
}

void Rails::post(std::size_t index, uint32_t transfer, std::size_t bytes, TimeNs now) {
  Path& path = paths_[index];
  Piece piece{transfer, bytes};
  piece.ticket.sent = now;
  if (config_.choice == PathChoice::kEngine) piece.ticket = path.estimate->posted(bytes, now);
  const TimeNs sent = send(index, bytes, now);
  piece.ends = sent == Rail::kNever ? sent : sent + config_.delay;
  if (path.flying.empty()) at(piece.ends, Kind::kCompleted, index);
  path.flying.push_back(piece);
}

void Rails::fill(TimeNs now) {
  if (config_.choice != PathChoice::kEngine) return bind(now);
  while (draw(now)) {
  }
}

transfer::Choice Rails::choose(uint64_t remaining, TimeNs now) {
  views_.clear();
  for (const Path& path : paths_) views_.push_back({path.estimate.get(), 1.0, is_ready(path)});
  return transfer::choose(views_, remaining, now);
}

// Posts one slice, if there is one that a path takes.
bool Rails::draw(TimeNs now) {
  if (!unbound_.empty()) {
    Piece& piece = unbound_.front();
    const transfer::Choice choice = choose(piece.bytes, now);
    if (!choice) return false;
    const uint32_t transfer = piece.transfer;
    piece.bytes -= choice.bytes;
    if (piece.bytes == 0) unbound_.pop_front();
    post(static_cast<std::size_t>(choice.path), transfer, choice.bytes, now);
    return true;
  }
  int looked = 0;
  for (auto it = waiting_.begin(); it != waiting_.end() && looked < kMaxLooked; ++it, ++looked) {
    const Waiting one = *it;
    const transfer::Choice choice = choose(left_[one.transfer], now);
    if (!choice) continue;
    left_[one.transfer] -= choice.bytes;
    turn_ = one.turn;
    in_turn_[one.transfer] += choice.bytes;
    if (left_[one.transfer] == 0) {
      waiting_.erase(it);
    } else if (in_turn_[one.transfer] >= kTurnBytes) {
      in_turn_[one.transfer] = 0;
      waiting_.erase(it);
      waiting_.insert({one.turn + 1, one.transfer});
    }
    post(static_cast<std::size_t>(choice.path), one.transfer, choice.bytes, now);
    return true;
  }
  return false;
}

// Binds all slices at once, each to the path whose turn it is or the next that is ready.
void Rails::bind(TimeNs now) {
  const std::size_t count = paths_.size();
  while (!unbound_.empty()) {
    const Piece piece = unbound_.front();
    const std::size_t first =
        config_.choice == PathChoice::kStatic ? piece.transfer : std::size_t{robin_++};
    std::size_t tried = 0;
    while (tried < count && !is_ready(paths_[(first + tried) % count])) ++tried;
    if (tried == count) return;
    unbound_.pop_front();
    post((first + tried) % count, piece.transfer, piece.bytes, now);
  }
}

}  // namespace inlay::sim
