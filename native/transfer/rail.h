// Health of one rail: when it may carry slices, when it is tried again.
//
// Pure: events and times come in, what to do goes out; nothing is connected, closed or locked here.
// Calls for one rail need to be serialized by the caller. `inlay.transfer.reference.rail` is the
// same machine; on the same history both act alike.
//
//   state       event                              next        to do
//   connecting  connected                          ready       announce
//   connecting  refused, error, link down, 150 ms  paused      close, announce
//   ready       error, link down                   paused      close, announce
//   ready       silence, suspect                   paused      close, announce; with no other ready
//                                                              rail to the peer: nothing
//   ready       outlier                            ready       restart the window
//   ready, connecting  hold                        held        announce: what is in flight ends
//   paused      its time to probe, link up         paused      close, connect
//   paused      connected                          ready       restart the window, announce
//   paused      refused, error, silence, link      paused      close, the next probe is later
//               down, 150 ms since the probe
//   paused      hold                               held        announce; close, if it was probing
//   held        release                            paused      close, connect
//   held        anything else                      held        nothing
//   any         close                              closed      close, announce
//
// A probe is a new connection with its handshake. After a pause the first comes 100 ms later, then
// after 100, 200, 400 and each 500 ms, or each 2 s once the pause is a minute old. The count of
// retries halves every 10 s and is not cleared by one success: a rail that flaps is tried seldom.
// Held is paused by an operator. "close" in paused is for what is left of an earlier probe, or of
// the time before a hold.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string_view>

#include "../core/time_ns.h"

namespace inlay::transfer {

enum class RailState : uint8_t { kConnecting, kReady, kPaused, kClosed };

enum class RailEvent : uint8_t {
  kTick,       // it is next_tick(), or later
  kConnected,  // connection and handshake are done, also of a probe
  kRefused,    // the connection could not be made
  kError,      // a connection of the rail was lost
  kSilence,    // we sent and nothing was acknowledged, see is_silent()
  kSuspect,    // the peer says the same of what it sent
  kOutlier,    // a slice took far longer than expected, while the rail shows life
  kLinkDown,
  kLinkUp,
  kHold,  // an operator takes the rail out of use
  kRelease,
  kClose,  // the peer is gone or the engine closes
};
inline constexpr std::size_t kNumRailEvents = 12;

// What the caller does, in this order.
struct RailActions {
  bool close = false;     // all connections of the rail; their slices go elsewhere
  bool connect = false;   // afresh; the answer is kConnected, kRefused or kError
  bool restart = false;   // PathEstimate::restart
  bool announce = false;  // the state changed
  bool operator==(const RailActions&) const = default;
};

struct RailConfig {
  // How long a connection may take to be made. A far peer needs some round trips.
  TimeNs connect_timeout = 150 * kMillisecond;
};

class Rail {
 public:
  static constexpr TimeNs kNever = std::numeric_limits<TimeNs>::max();

  // Starts in connecting; the caller has begun to connect at `now`.
  explicit Rail(TimeNs now, RailConfig config = {});

  // `others_ready`: another rail or transport can carry the peer's slices. Only then silence and
  // suspicion count: an only rail is better slow than closed.
  RailActions on(RailEvent event, TimeNs now, bool others_ready = true);

  RailState state() const { return state_; }
  // Of the last pause; kTick for a connection that took too long.
  RailEvent reason() const { return reason_; }
  // When on(kTick) has something to do; kNever for not at all.
  TimeNs next_tick() const { return next_; }
  double retries() const { return retries_; }

 private:
  RailActions pause(RailEvent reason, TimeNs now);
  RailActions on_paused(RailEvent event, TimeNs now);
  RailActions probe(TimeNs now);
  void schedule(TimeNs now);

  RailConfig config_;
  RailState state_ = RailState::kConnecting;
  RailEvent reason_ = RailEvent::kTick;
  bool connecting_ = true;  // a connection or probe is under way
  bool held_ = false;
  TimeNs next_;
  TimeNs paused_at_ = 0;
  double retries_ = 0.0;
  TimeNs counted_at_;
};

// Whether the bytes that were sent on a TCP connection get nowhere: `unacknowledged` segments and
// `since_ack` without an acknowledgement. One segment alone may wait for a delayed one.
bool is_silent(uint32_t unacknowledged, TimeNs since_ack, TimeNs smoothed_round_trip);

std::string_view name_of(RailState state);
std::string_view name_of(RailEvent event);

}  // namespace inlay::transfer
