// Transfers over links that fail and slow down, by the policies that the transfer engine runs.
//
// Which path takes the next slice is transfer::choose() with a transfer::PathEstimate for each
// path, when a path is given up and tried again is a transfer::Rail; both are the engine's own.
// What is modelled is around them: a link sends one slice after the other at its rate of the
// moment, a slice completes a fixed time after its last byte, what was in flight on a rail that is
// closed is read again over others, and a rail that comes back starts with an estimate of its own,
// as a connection that is made afresh. The order of transfers is that of transfer::Dispatch: 1 MiB
// of each in turn.
//
// Cost: about 0.3 us per slice.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <queue>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "../transfer/rail.h"
#include "../transfer/spray.h"

namespace inlay::sim {

// How a link is from then on. At 0 bytes/s what is on it stays; over one that is not up no
// connection is made either.
struct LinkState {
  TimeNs since;
  double bytes_per_s;
  bool up;
};

enum class PathChoice : uint8_t {
  kEngine,      // what the engine does: a slice is bound when the path has room that ends it first
  kRoundRobin,  // slices of 64 KiB are bound in turn when their transfer begins
  kStatic,      // each transfer is bound to one path, in turn
};

struct RailsConfig {
  PathChoice choice = PathChoice::kEngine;
  std::vector<std::vector<LinkState>> links;  // ascending, the first at 0
  std::vector<double> believed;               // bytes/s that the engine is told of each link
  TimeNs delay = 0;                           // one way
  bool link_events = false;  // whether this machine is told when a link goes down and comes up
  TimeNs until = 0;          // when the run ends, above 0
  TimeNs bin = kMillisecond;
  uint32_t at_once = 0;  // so many transfers are always under way; 0: they begin at their times
};

struct RailsTransfer {
  TimeNs begun;
  uint64_t bytes;  // at least 1
};

struct RailsOutcome {
  std::vector<TimeNs> begun;               // -1 for a transfer that did not begin
  std::vector<TimeNs> done;                // -1 for one that is not complete
  std::vector<std::vector<double>> moved;  // bytes that completed, by link and bin
  uint64_t again = 0;                      // slices that were posted more than once
};

class Rails {
 public:
  // Throws ArgumentError where links are none, or their states are not in order.
  explicit Rails(RailsConfig config);

  // `transfers` come in order of their times. Once.
  RailsOutcome run(std::span<const RailsTransfer> transfers);

 private:
  struct Piece {
    uint32_t transfer;
    std::size_t bytes;
    TimeNs ends = 0;
    transfer::Ticket ticket = {};
  };
  struct Path {
    std::size_t state = 0;  // of the link, at `free`
    TimeNs free = 0;        // when the link has sent all that was posted
    uint32_t epoch = 0;     // of its connection
    transfer::Rail rail;
    std::unique_ptr<transfer::PathEstimate> estimate;
    std::deque<Piece> flying;
  };
  enum class Kind : uint8_t { kCompleted, kConnected, kTick, kLinkDown, kLinkUp, kLook };
  struct Event {
    TimeNs at;
    uint64_t order;
    Kind kind;
    uint32_t path = 0;
    uint32_t epoch = 0;
    bool operator>(const Event& other) const {
      return at != other.at ? at > other.at : order > other.order;
    }
  };
  struct Waiting {
    uint64_t turn;
    uint32_t transfer;
    auto operator<=>(const Waiting&) const = default;
  };

  const LinkState& state_at(std::size_t path, TimeNs now) const;
  bool is_ready(const Path& path) const;
  bool others_ready(std::size_t path) const;
  TimeNs send(std::size_t path, std::size_t bytes, TimeNs now);
  void at(TimeNs time, Kind kind, std::size_t path = 0);
  void begin(uint32_t transfer, TimeNs now);
  void handle(const Event& event);
  void tell(std::size_t path, transfer::RailEvent event, TimeNs now);
  void look(TimeNs now);
  void complete(std::size_t path, TimeNs now);
  void post(std::size_t path, uint32_t transfer, std::size_t bytes, TimeNs now);
  void fill(TimeNs now);
  bool draw(TimeNs now);
  void bind(TimeNs now);
  transfer::Choice choose(uint64_t remaining, TimeNs now);

  RailsConfig config_;
  std::vector<Path> paths_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  uint64_t order_ = 0;
  std::span<const RailsTransfer> transfers_;
  uint32_t next_ = 0;                 // transfer to begin
  std::vector<uint64_t> left_;        // to be posted
  std::vector<uint64_t> unanswered_;  // bytes
  std::vector<uint64_t> in_turn_;     // posted since its turn began
  std::set<Waiting> waiting_;
  uint64_t turn_ = 0;
  std::deque<Piece> unbound_;  // to be posted again, or for want of a rail
  uint32_t robin_ = 0;
  std::vector<transfer::PathView> views_;
  RailsOutcome outcome_;
};

}  // namespace inlay::sim
