// What a worker has submitted, and the ways it goes.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "plot.h"

namespace random_test {

using inlay::transfer::Op;
using inlay::transfer::Peer;
using inlay::transfer::RemoteSegment;

// A worker's connection to a target, and what had begun there when a failure could last be
// excluded.
struct Link {
  std::shared_ptr<Initiator> initiator;  // outlives the peer
  std::shared_ptr<Peer> peer;
  uint64_t generation = 0;
  uint64_t ends = 0;
  uint64_t evictions = 0;
  std::array<uint64_t, kKinds.size()> deregistrations{};

  // Whether something that was done to the target, or to the engine, explains this.
  bool explains(Status status, const Target& target, Kind kind) const {
    const Events& events = target.events;
    const bool ended = events.ends.load() > ends;
    const auto at = static_cast<std::size_t>(kind);
    switch (status) {
      case Status::kEngineClosed:
        return initiator->closing.load();
      case Status::kSegmentClosed:
      case Status::kSegmentNotFound:
        return ended || events.deregistrations[at].load() > deregistrations[at];
      case Status::kPeerDied:
      case Status::kPeerUnreachable:
        return ended || events.evictions.load() > evictions || initiator->closing.load();
      default:
        return false;
    }
  }
};

struct Part {
  Op op;
  Plot* plot;
  Link link;
  std::shared_ptr<RemoteSegment> remote;
  std::array<uint64_t, kKinds.size()> deregistrations;  // begun before the submission
  std::vector<Range> ranges;
  uint64_t at = 0;                 // of the plot's bytes that are looked at
  std::vector<std::byte> after{};  // those, of a write that is complete
};

struct Flight {
  std::shared_ptr<Initiator> initiator;  // outlives the batch
  std::shared_ptr<Batch> batch;
  int slot = 0;
  std::vector<Part> parts;
  const std::byte* before = nullptr;  // local bytes, also the source of writes
  std::vector<std::byte> after{};     // when all reads are complete
  bool cancelled = false;
  double deadline_s = 0;
  uint32_t notification = 0;  // 0: none
  Clock::time_point submitted{};
  Clock::time_point over_by{};
};

// The engine of all workers but the first, which one of them closes now and then.
class Roamer {
 public:
  explicit Roamer(Transports transports)
      : transports_(std::move(transports)), now_(std::make_shared<Initiator>(transports_)) {}
  std::shared_ptr<Initiator> get() const {
    const std::lock_guard lock(mutex_);
    return now_;
  }
  void renew() {
    auto next = std::make_shared<Initiator>(transports_);
    {
      const std::lock_guard lock(mutex_);
      now_.swap(next);
    }
    next->close();
  }

 private:
  const Transports transports_;
  mutable std::mutex mutex_;
  std::shared_ptr<Initiator> now_;
};

}  // namespace random_test
