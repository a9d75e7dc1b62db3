// Transfers that complete together: what is asked, how far it is, and how it ends.
//
//   running --all answered--> done | failed
//   running --stop()--> stopping --all answered, or given up--> cancelled | timed out
//
// A part is what goes to one peer. Its fields are guarded by that peer's dispatcher; those of the
// batch by its own lock, which is taken after a dispatcher's and never before.
//
// Who lands bytes after the end: nobody in local memory. In remote memory nothing either, except
// when writes were given up without an answer: then settled() is false.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "../core/status.h"
#include "../net/socket.h"
#include "completions.h"
#include "request.h"

namespace inlay::transfer {

class Batch;

// A slice that was tried before.
struct Retry {
  Slice slice;
  uint32_t request;
  uint32_t slice_id;
  uint16_t number;  // of the next try
  uint8_t damaged;  // tries whose bytes came damaged
};

struct Part {
  Batch* batch = nullptr;
  std::shared_ptr<Peer> peer;
  std::vector<uint32_t> requests;  // indices into the batch's
  uint64_t bytes = 0;
  // The next byte to post: requests[request], its range, bytes of that range already posted.
  std::size_t request = 0;
  std::size_t range = 0;
  uint64_t skip = 0;
  uint64_t left = 0;         // bytes not yet posted, of failed requests too
  std::vector<Retry> again;  // posted before anything new
  uint32_t next_slice = 0;
  uint32_t outstanding = 0;  // attempts that are not over, or in doubt
  uint64_t turn = 0;         // of the dispatcher's rounds
  uint64_t turn_bytes = 0;   // posted in it
  bool queued = false;
  bool added = false;     // the dispatcher knows it
  bool stopped = false;   // no further slices
  bool given_up = false;  // nor is anything waited for
  bool finished = false;
  std::shared_ptr<Batch> self;  // from add() to the end

  // Skips requests that failed.
  bool has_next();
};

enum class State : uint8_t { kRunning, kDone, kFailed, kCancelled, kTimedOut };

class Batch : public std::enable_shared_from_this<Batch> {
 public:
  // Enters the local segments, which it leaves at the end. Throws TransferFailure(kSegmentClosed).
  Batch(std::vector<Request> requests, Clock::time_point deadline, double deadline_s, int spin_us);
  ~Batch();

  // Once. What is small may be over when it returns.
  void start();
  // The same without posting anything: for who holds a path's lock, and calls Peer::fill() later.
  void enqueue();

  bool over() const { return state_.load(std::memory_order_acquire) != State::kRunning; }
  State state() const { return state_.load(std::memory_order_acquire); }
  // Tells when it is over; false: it is over now.
  bool tell(std::shared_ptr<Listener> listener, uint64_t key);
  // Tells when a batch that is over has settled; false: it has.
  bool tell_settled(std::shared_ptr<Listener> listener, uint64_t key);
  // Moves the batch's bytes until it is over or the time comes; false: the time came.
  bool wait(Clock::time_point until);
  // Ends it; what is not answered within `grace` is given up. Returns at once.
  void stop(Status reason, Clock::duration grace);
  // Nothing of it can land in remote memory any more. Becomes true when late answers arrive.
  bool settled() const { return unsettled_.load() == 0; }
  // Stops or gives up what is due; returns when to look again.
  Clock::time_point check_time(Clock::time_point now);

  struct Progress {
    uint64_t bytes_done = 0;
    bool complete = false;
    Status error = Status::kOk;
    uint32_t checksum = 0;  // of a complete request that asks for it
  };
  std::size_t size() const { return requests_.size(); }
  Progress progress(std::size_t index);
  bool sums_up(std::size_t index) const { return requests_[index].checksum; }
  bool uses(const Segment& segment) const;
  // What wait() raises; only of a batch that is over and not done.
  TransferFailure failure();
  TransferFailure failure_of(std::size_t index, Status status) const;

 private:
  friend class Dispatch;
  friend struct Part;

  class Driving;
  // By dispatchers, locked:
  void part_finished();
  void attempt_settled();

  std::vector<Request> requests_;
  std::vector<Progress> progress_;  // of each; guarded by its peer's dispatcher
  std::vector<std::unique_ptr<Part>> parts_;
  const uint64_t id_;
  const Clock::time_point deadline_;
  const double deadline_s_;
  const int spin_us_;
  std::atomic<uint32_t> unsettled_{0};
  std::atomic<State> state_{State::kRunning};
  std::atomic<Clock::rep> next_check_;

  std::mutex mutex_;
  std::size_t unfinished_parts_ = 0;
  Status stop_reason_ = Status::kOk;
  std::vector<const net::WakeUp*> sleepers_;
  std::vector<std::pair<std::shared_ptr<Listener>, uint64_t>> told_;
  std::vector<std::pair<std::shared_ptr<Listener>, uint64_t>> told_settled_;
};

}  // namespace inlay::transfer
