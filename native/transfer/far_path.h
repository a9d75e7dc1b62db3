// Paths whose bytes far memories move: between local memory and far memory that this process moves
// itself.
#pragma once

#include <condition_variable>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>

#include "far_memory.h"
#include "transport.h"

namespace inlay::transfer {

class FarPath : public Path, public std::enable_shared_from_this<FarPath> {
 public:
  PostResult post(Attempt& attempt) override;
  void kick() override;
  // Far memories move by themselves.
  bool pump() override { return false; }
  bool try_drive(const net::WakeUp&) override { return true; }
  void stop_driving(const net::WakeUp&) override {}
  // What has begun cannot be called back: it is reported when it is over.
  void revoke(const void* owner) override;
  void abandon(const void* owner) override;
  void close(Status why) override;

 protected:
  explicit FarPath(std::weak_ptr<PathOwner> owner) : owner_(std::move(owner)) {}

  // How a slice moves.
  struct Prepared {
    Status refused = Status::kOk;
    bool later = false;                         // not known yet: resume() will ask again
    std::shared_ptr<const void> use = nullptr;  // of the far memory, until the move is over
    std::function<std::unique_ptr<FarMove>(FarMove::Done)> move = nullptr;
    std::byte* near = nullptr;  // where the other segment begins, as the far memory takes it
    bool far_is_local = false;  // the far memory is the local segment's, not the remote one's
  };
  // (locked) Offsets and access are checked here.
  virtual Prepared prepare(const Slice& slice) = 0;
  void resume();
  // (locked) Ends what uses that far memory: kSegmentClosed for what is not begun.
  void end_uses(const void* use);
  // Whether all ranges lie in a segment of that size.
  static bool is_inside(const Slice& slice, uint64_t size);

  const std::weak_ptr<PathOwner> owner_;
  std::mutex mutex_;
  Status closed_ = Status::kOk;

 private:
  struct Job {
    Attempt* attempt;
    const void* owner;
    std::shared_ptr<const void> use;
    std::unique_ptr<FarMove> move;  // null: not known yet
    bool started = false;
  };
  using Jobs = std::list<Job>;

  void make_move(Jobs::iterator job, Prepared prepared);
  void over(Jobs::iterator job, Status status);
  void report(const Job& job, Status status);

  std::condition_variable ended_;
  Jobs jobs_;
};

// Between host memory and far memory of one engine.
class OwnFarPath final : public FarPath {
 public:
  struct Made {
    std::string transport;
    std::string name;
    net::Place place;  // of the far memories that it leads to
    Reach reach;
  };
  OwnFarPath(std::weak_ptr<PathOwner> owner, SegmentRegistry& segments, Made made)
      : FarPath(std::move(owner)), segments_(segments), made_(std::move(made)) {}

  std::string_view transport() const override { return made_.transport; }
  std::string name() const override { return made_.name; }
  std::optional<Reach> reach(const Segment& local, const RemoteSegment& remote,
                             Op op) const override;

 private:
  Prepared prepare(const Slice& slice) override;

  SegmentRegistry& segments_;
  const Made made_;
};

}  // namespace inlay::transfer
