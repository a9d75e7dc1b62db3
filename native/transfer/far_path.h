// The path between host memory and far memory of one engine.
#pragma once

#include <condition_variable>
#include <list>
#include <memory>
#include <mutex>
#include <string>

#include "far_memory.h"
#include "transport.h"

namespace inlay::transfer {

class FarPath final : public Path, public std::enable_shared_from_this<FarPath> {
 public:
  struct Made {
    std::string transport;
    std::string name;
    net::Place place;  // of the far memories that it leads to
    Reach reach;
  };
  FarPath(std::weak_ptr<PathOwner> owner, SegmentRegistry& segments, Made made)
      : owner_(std::move(owner)), segments_(segments), made_(std::move(made)) {}

  std::string_view transport() const override { return made_.transport; }
  std::string name() const override { return made_.name; }
  std::optional<Reach> reach(const Segment& local, const RemoteSegment& remote,
                             Op op) const override;
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

 private:
  struct Job {
    Attempt* attempt;
    const void* owner;
    std::shared_ptr<SegmentUse> use;
    std::unique_ptr<FarMove> move;
    bool started = false;
    bool given_up = false;
  };
  using Jobs = std::list<Job>;

  void over(Jobs::iterator job, Status status);
  void report(const Job& job, Status status, bool settled);

  const std::weak_ptr<PathOwner> owner_;
  SegmentRegistry& segments_;
  const Made made_;
  std::mutex mutex_;
  std::condition_variable ended_;
  Status closed_ = Status::kOk;
  Jobs jobs_;
};

}  // namespace inlay::transfer
