#include "far_path.h"

#include <utility>
#include <vector>

namespace inlay::transfer {

bool FarPath::is_inside(const Slice& slice, uint64_t size) {
  bool inside = true;
  slice.each([&](const Range& range) {
    inside &= range.length <= size && range.remote <= size - range.length;
  });
  return inside;
}

PostResult FarPath::post(Attempt& attempt) {
  const std::lock_guard lock(mutex_);
  if (closed_ != Status::kOk) return {Posted::kRefused, closed_};
  Prepared prepared = prepare(attempt.slice);
  if (prepared.refused != Status::kOk) return {Posted::kRefused, prepared.refused};
  jobs_.push_back({&attempt, attempt.owner, nullptr, nullptr});
  if (!prepared.later) make_move(std::prev(jobs_.end()), std::move(prepared));
  return {Posted::kTaken};
}

void FarPath::make_move(Jobs::iterator job, Prepared prepared) {
  job->use = std::move(prepared.use);
  job->move =
      prepared.move([self = shared_from_this(), job](Status status) { self->over(job, status); });
  job->attempt->slice.each([&](const Range& range) {
    if (prepared.far_is_local)
      job->move->add(range.local, prepared.near + range.remote, range.length);
    else
      job->move->add(range.remote, prepared.near + range.local, range.length);
  });
}

void FarPath::resume() {
  {
    const std::lock_guard lock(mutex_);
    for (auto job = jobs_.begin(); job != jobs_.end();) {
      const auto next = std::next(job);
      if (job->move == nullptr) {
        Prepared prepared = prepare(job->attempt->slice);
        if (prepared.refused != Status::kOk) {
          report(*job, prepared.refused);
          jobs_.erase(job);
        } else if (!prepared.later) {
          make_move(job, std::move(prepared));
        }
      }
      job = next;
    }
  }
  kick();
}

void FarPath::kick() {
  // Without the lock, for a move may be over before start() returns.
  std::vector<FarMove*> begun;
  {
    const std::lock_guard lock(mutex_);
    for (Job& job : jobs_) {
      if (job.move == nullptr || std::exchange(job.started, true)) continue;
      begun.push_back(job.move.get());
    }
  }
  for (FarMove* move : begun) move->start();
}

void FarPath::end_uses(const void* use) {
  for (auto job = jobs_.begin(); job != jobs_.end();) {
    const auto next = std::next(job);
    if (job->move != nullptr && job->use.get() == use) {
      if (job->started) {
        job->move->cancel();
      } else {
        report(*job, Status::kSegmentClosed);
        jobs_.erase(job);
      }
    }
    job = next;
  }
}

void FarPath::report(const Job& job, Status status) {
  if (const auto owner = owner_.lock()) owner->completed(*job.attempt, status);
}

void FarPath::over(Jobs::iterator job, Status status) {
  const auto owner = owner_.lock();
  // Before anybody hears of the end, and without the lock: letting go may take a while.
  std::shared_ptr<const void> use;
  {
    const std::lock_guard lock(mutex_);
    use.swap(job->use);
  }
  use = nullptr;
  Jobs ended;  // destroyed without the lock
  {
    const std::lock_guard lock(mutex_);
    ended.splice(ended.begin(), jobs_, job);
    if (owner != nullptr)
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
      report(*job, Status::kCancelled);
      jobs_.erase(job);
    } else if (job->owner == owner && job->attempt->slice.request->op == Op::kRead) {
      job->move->cancel();
    }
    job = next;
  }
}

// What a disk or device has begun reads local memory until it is done with it: its end comes then.
void FarPath::abandon(const void* owner) {
  const std::lock_guard lock(mutex_);
  for (Job& job : jobs_)
    if (job.owner == owner && job.started) job.move->cancel();
}

void FarPath::close(Status why) {
  std::unique_lock lock(mutex_);
  if (closed_ == Status::kOk) closed_ = why;
  for (auto job = jobs_.begin(); job != jobs_.end();) {
    const auto next = std::next(job);
    if (job->started) {
      job->move->cancel();
    } else {
      report(*job, closed_);
      jobs_.erase(job);
    }
    job = next;
  }
  ended_.wait(lock, [this] { return jobs_.empty(); });
}

std::optional<Reach> OwnFarPath::reach(const Segment& local, const RemoteSegment& remote,
                                       Op) const {
  const bool reaches =
      local.location.place == net::Place::kHost && remote.descriptor.location.place == made_.place;
  return reaches ? std::optional(made_.reach) : std::nullopt;
}

FarPath::Prepared OwnFarPath::prepare(const Slice& slice) {
  const Request& request = *slice.request;
  const net::SegmentDescriptor& named = request.remote->descriptor;
  auto use = segments_.use(named.slot, named.epoch);
  if (use == nullptr) return {Status::kSegmentClosed};
  const Segment& segment = use->segment();
  const bool write = request.op == Op::kWrite;
  if (segment.far == nullptr || (write && !segment.writable)) return {Status::kSegmentAccess};
  if (!is_inside(slice, segment.size)) return {Status::kSegmentRange};
  return {
      Status::kOk, false, std::move(use),
      [far = segment.far, write](FarMove::Done done) { return far->move(write, std::move(done)); },
      request.local->base};
}

}  // namespace inlay::transfer
