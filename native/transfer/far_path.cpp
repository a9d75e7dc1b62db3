#include "far_path.h"

#include <utility>
#include <vector>

namespace inlay::transfer {

std::optional<Reach> FarPath::reach(const Segment& local, const RemoteSegment& remote, Op) const {
  const bool reaches =
      local.location.place == net::Place::kHost && remote.descriptor.location.place == made_.place;
  return reaches ? std::optional(made_.reach) : std::nullopt;
}

PostResult FarPath::post(Attempt& attempt) {
  const Request& request = *attempt.slice.request;
  const net::SegmentDescriptor& named = request.remote->descriptor;
  auto use = segments_.use(named.slot, named.epoch);
  if (use == nullptr) return {Posted::kRefused, Status::kSegmentClosed};
  const Segment& segment = use->segment();
  const bool write = request.op == Op::kWrite;
  if (segment.far == nullptr || (write && !segment.writable))
    return {Posted::kRefused, Status::kSegmentAccess};
  bool inside = true;
  attempt.slice.each(
      [&](const Range& range) { inside &= segment.contains(range.remote, range.length); });
  if (!inside) return {Posted::kRefused, Status::kSegmentRange};

  const std::lock_guard lock(mutex_);
  if (closed_ != Status::kOk) return {Posted::kRefused, closed_};
  jobs_.push_back({&attempt, attempt.owner, std::move(use), nullptr});
  const auto job = std::prev(jobs_.end());
  job->move = segment.far->move(
      write, [self = shared_from_this(), job](Status status) { self->over(job, status); });
  attempt.slice.each([&](const Range& range) {
    job->move->add(range.remote, request.local->base + range.local, range.length);
  });
  return {Posted::kTaken};
}

void FarPath::kick() {
  // Without the lock, for a move may be over before start() returns.
  std::vector<FarMove*> begun;
  {
    const std::lock_guard lock(mutex_);
    for (Job& job : jobs_) {
      if (std::exchange(job.started, true)) continue;
      begun.push_back(job.move.get());
    }
  }
  for (FarMove* move : begun) move->start();
}

void FarPath::report(const Job& job, Status status, bool settled) {
  if (const auto owner = owner_.lock()) owner->completed(*job.attempt, status, settled);
}

void FarPath::over(Jobs::iterator job, Status status) {
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

void FarPath::revoke(const void* owner) {
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

void FarPath::abandon(const void* owner) {
  const std::lock_guard lock(mutex_);
  for (Job& job : jobs_) {
    if (job.owner != owner || job.given_up) continue;
    job.move->cancel();
    if (job.attempt->slice.request->op == Op::kRead) continue;
    job.given_up = true;
    report(job, Status::kCancelled, false);
  }
}

void FarPath::close(Status why) {
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

}  // namespace inlay::transfer
