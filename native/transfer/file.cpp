#include "file.h"

#include <condition_variable>
#include <list>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "disk_file.h"

namespace inlay::transfer {

namespace {

// Of a fast disk. What matters is that no other way to a file of this engine is faster.
constexpr Reach kReach{4e9, 50e-6};

class FilePath final : public Path, public std::enable_shared_from_this<FilePath> {
 public:
  FilePath(std::weak_ptr<PathOwner> owner, SegmentRegistry& segments)
      : owner_(std::move(owner)), segments_(segments) {}

  std::string_view transport() const override { return "file"; }
  std::string name() const override { return "file, this process"; }
  std::optional<Reach> reach(const Segment& local, const RemoteSegment& remote, Op) const override {
    const bool reaches = local.location.place == net::Place::kHost &&
                         remote.descriptor.location.place == net::Place::kDisk;
    return reaches ? std::optional(kReach) : std::nullopt;
  }

  PostResult post(Attempt& attempt) override;
  void kick() override;
  // The queue of files has threads of its own.
  bool pump() override { return false; }
  bool try_drive(const net::WakeUp&) override { return true; }
  void stop_driving(const net::WakeUp&) override {}
  void revoke(const void* owner) override;
  void abandon(const void* owner) override;
  void close(Status why) override;

 private:
  struct Job {
    Attempt* attempt;  // null: given up and settled
    const void* owner;
    std::shared_ptr<SegmentUse> use;
    std::unique_ptr<FileMove> move;
    bool started = false;
    bool given_up = false;
  };
  using Jobs = std::list<Job>;

  void over(Jobs::iterator job, Status status);
  void report(const Job& job, Status status, bool settled);

  const std::weak_ptr<PathOwner> owner_;
  SegmentRegistry& segments_;
  std::mutex mutex_;
  std::condition_variable ended_;
  Status closed_ = Status::kOk;
  Jobs jobs_;
};

PostResult FilePath::post(Attempt& attempt) {
  const Request& request = *attempt.slice.request;
  const net::SegmentDescriptor& named = request.remote->descriptor;
  auto use = segments_.use(named.slot, named.epoch);
  if (use == nullptr) return {Posted::kRefused, Status::kSegmentClosed};
  const Segment& segment = use->segment();
  const bool write = request.op == Op::kWrite;
  if (segment.file == nullptr || (write && !segment.writable))
    return {Posted::kRefused, Status::kSegmentAccess};
  bool inside = true;
  attempt.slice.each(
      [&](const Range& range) { inside &= segment.contains(range.remote, range.length); });
  if (!inside) return {Posted::kRefused, Status::kSegmentRange};

  const std::lock_guard lock(mutex_);
  if (closed_ != Status::kOk) return {Posted::kRefused, closed_};
  jobs_.push_back({&attempt, attempt.owner, std::move(use), nullptr});
  const auto job = std::prev(jobs_.end());
  job->move = std::make_unique<FileMove>(
      *segment.file, write,
      [self = shared_from_this(), job](Status status) { self->over(job, status); });
  attempt.slice.each([&](const Range& range) {
    job->move->add(range.remote, request.local->base + range.local, range.length);
  });
  return {Posted::kTaken};
}

void FilePath::kick() {
  // Without the lock, for a queue that is stopped calls over() from there.
  std::vector<FileMove*> begun;
  {
    const std::lock_guard lock(mutex_);
    for (Job& job : jobs_) {
      if (std::exchange(job.started, true)) continue;
      begun.push_back(job.move.get());
    }
  }
  for (FileMove* move : begun) move->start();
}

void FilePath::report(const Job& job, Status status, bool settled) {
  if (const auto owner = owner_.lock()) owner->completed(*job.attempt, status, settled);
}

void FilePath::over(Jobs::iterator job, Status status) {
  const auto owner = owner_.lock();
  Jobs ended;  // destroyed without the lock
  {
    const std::lock_guard lock(mutex_);
    ended.splice(ended.begin(), jobs_, job);
    job->use = nullptr;
    if (owner != nullptr && job->given_up)
      owner->settled(*job->attempt);
    else if (owner != nullptr)
      owner->completed(*job->attempt,
                       status == Status::kCancelled && closed_ != Status::kOk ? closed_ : status);
    ended_.notify_all();
  }
  if (owner != nullptr) owner->fill();
}

void FilePath::revoke(const void* owner) {
  const std::lock_guard lock(mutex_);
  for (auto job = jobs_.begin(); job != jobs_.end();) {
    const auto next = std::next(job);
    if (job->owner == owner && !job->started) {
      report(*job, Status::kCancelled, true);
      jobs_.erase(job);
    } else if (job->owner == owner && job->attempt->slice.request->op == Op::kRead) {
      job->move->cancel();
    }
    job = next;
  }
}

void FilePath::abandon(const void* owner) {
  const std::lock_guard lock(mutex_);
  for (Job& job : jobs_) {
    if (job.owner != owner || job.given_up) continue;
    job.move->cancel();
    if (job.attempt->slice.request->op == Op::kRead) continue;
    job.given_up = true;
    report(job, Status::kCancelled, false);
  }
}

void FilePath::close(Status why) {
  std::unique_lock lock(mutex_);
  if (closed_ == Status::kOk) closed_ = why;
  for (auto job = jobs_.begin(); job != jobs_.end();) {
    const auto next = std::next(job);
    if (job->started) {
      job->move->cancel();
    } else {
      report(*job, closed_, true);
      jobs_.erase(job);
    }
    job = next;
  }
  ended_.wait(lock, [this] { return jobs_.empty(); });
}

}  // namespace

Transport::Connected FileTransport::connect(const std::shared_ptr<PathOwner>& peer,
                                            std::span<const std::byte>, Clock::time_point) {
  if (peer->engine_id() != site_.engine) return {{}, "its files are its own"};
  return {{std::make_shared<FilePath>(peer, site_.segments)}, {}};
}

}  // namespace inlay::transfer
