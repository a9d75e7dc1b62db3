// The initiator's side of staging: the path between far memory of this engine and what its other
// paths reach from host memory.
//
//   write   far memory --FarMove--> buffer --Batch--> remote segment
//   read    remote segment --Batch--> buffer --FarMove--> far memory
//
// Each slice has a buffer and a batch of its own, which the peer's dispatcher posts like any other:
// what is tried again, goes another way or is in doubt is its matter. Many slices are under way at
// a time, so the far memory and the connection work at once.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "batch.h"
#include "far_memory.h"
#include "staging.h"
#include "transport.h"

namespace inlay::transfer {

// The paths to a peer that move host memory, to see what they reach.
class HostPaths {
 public:
  void add(std::shared_ptr<Path> path);
  void remove(const Path& path);
  void clear();
  // The best of them; 1 MiB is compared.
  std::optional<Reach> reach(const Segment& local, const RemoteSegment& remote, Op op) const;

 private:
  mutable std::mutex mutex_;
  std::vector<std::shared_ptr<Path>> paths_;
};

class StagedPath final : public Path,
                         public StagingArea::User,
                         public std::enable_shared_from_this<StagedPath> {
 public:
  StagedPath(std::weak_ptr<PathOwner> owner, net::Loop& loop, std::shared_ptr<StagingArea> area,
             std::shared_ptr<const HostPaths> paths);
  ~StagedPath();

  std::string_view transport() const override { return "staging"; }
  std::string name() const override { return "staging, this process"; }
  bool verifies() const override { return true; }  // its batches do, or fail
  bool passes_on() const override { return true; }
  std::optional<Reach> reach(const Segment& local, const RemoteSegment& remote,
                             Op op) const override;
  PostResult post(Attempt& attempt) override;
  void kick() override;
  // The loop goes on from step to step; the batches are driven by whoever waits.
  bool pump() override { return false; }
  bool try_drive(const net::WakeUp&) override { return true; }
  void stop_driving(const net::WakeUp&) override {}
  // A move of far memory that has begun cannot be called back: it is reported when it is over.
  void revoke(const void* owner) override;
  void abandon(const void* owner) override;
  void close(Status why) override;
  // What may still land are attempts of the batches, which the dispatcher knows.
  Clock::time_point settled_by() override { return {}; }

  void buffer_free() override;

 private:
  class Watch;
  enum class Step : uint8_t { kQueued, kMoves, kTransfers };
  struct Job {
    Attempt* attempt;
    const void* owner;
    std::shared_ptr<Segment> local;
    Request transfer;                // between the buffer and the peer
    std::vector<Range> ranges = {};  // of the slice
    Step step = Step::kQueued;
    bool stopped = false;  // no further step
    bool given_up = false;
    std::shared_ptr<std::byte> buffer = nullptr;
    std::unique_ptr<FarMove> move = nullptr;
    std::optional<Status> moved = {};
    std::shared_ptr<Batch> batch = nullptr;

    bool writes() const { return transfer.op == Op::kWrite; }
  };
  using Jobs = std::map<uint64_t, Job>;
  // What has ended, and the owner, are let go of after the lock.
  struct Turn {
    std::shared_ptr<PathOwner> owner;
    std::vector<Job> ended;
    std::unique_lock<std::mutex> lock;
  };

  Turn enter();
  // On the loop's thread:
  void begin_queued();
  void go_on(uint64_t id);
  // These may unlock meanwhile, and end the job:
  void start_move(Turn& turn, uint64_t id);
  void start_transfer(Turn& turn, uint64_t id);
  void stop_transfer(Turn& turn, uint64_t id);
  void advance(Turn& turn, uint64_t id);
  void stop(Turn& turn, const void* owner, bool give_up);

  void end(Turn& turn, Jobs::iterator job, Status status, bool settled = true);
  Status why_stopped() const;

  const std::weak_ptr<PathOwner> owner_;
  net::Loop& loop_;
  const std::shared_ptr<StagingArea> area_;
  const std::shared_ptr<const HostPaths> paths_;
  std::shared_ptr<Watch> watch_;

  std::mutex mutex_;
  std::condition_variable moved_;
  Status closed_ = Status::kOk;
  uint64_t last_id_ = 0;
  Jobs jobs_;
  std::deque<uint64_t> queue_;
  std::size_t buffers_ = 0;        // of jobs
  bool waits_for_buffer_ = false;  // buffer_free() will come
  bool woken_ = false;             // begin_queued() will come
  // Reported, not settled; `batch` tells.
  struct Doubt {
    Attempt* attempt;
    std::shared_ptr<Batch> batch;
  };
  std::map<uint64_t, Doubt> in_doubt_;
};

}  // namespace inlay::transfer
