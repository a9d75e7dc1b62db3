#include "staged_path.h"

#include <algorithm>
#include <utility>

namespace inlay::transfer {

namespace {

// Of a fast disk or a device behind PCI Express, until something better is measured.
constexpr Reach kFar{4e9, 50e-6};
// One peer that does not answer must not keep all buffers from the others.
constexpr std::size_t kMostBuffers = StagingPool::kBuffers / 2;
// Writes that are under way are waited for until they are given up.
constexpr std::chrono::hours kNoEnd(24 * 365);

Status status_of(Batch& batch) {
  switch (batch.state()) {
    case State::kDone:
      return Status::kOk;
    case State::kFailed:
      return batch.progress(0).error;
    default:
      return Status::kCancelled;
  }
}

}  // namespace

void HostPaths::add(std::shared_ptr<Path> path) {
  const std::lock_guard lock(mutex_);
  paths_.push_back(std::move(path));
}

void HostPaths::remove(const Path& path) {
  std::shared_ptr<Path> removed;  // destroyed without the lock
  const std::lock_guard lock(mutex_);
  const auto found = std::ranges::find(paths_, &path, &std::shared_ptr<Path>::get);
  if (found == paths_.end()) return;
  removed = std::move(*found);
  paths_.erase(found);
}

void HostPaths::clear() {
  std::vector<std::shared_ptr<Path>> removed;
  const std::lock_guard lock(mutex_);
  removed.swap(paths_);
}

std::optional<Reach> HostPaths::reach(const Segment& local, const RemoteSegment& remote,
                                      Op op) const {
  std::optional<Reach> best;
  const std::lock_guard lock(mutex_);
  for (const auto& path : paths_) {
    const auto reach = path->reach(local, remote, op);
    if (reach && (!best || seconds_to_compare(*reach) < seconds_to_compare(*best))) best = reach;
  }
  return best;
}

// Told with locks held, so the loop does the work.
class StagedPath::Watch final : public Listener {
 public:
  Watch(net::Loop& loop, std::weak_ptr<StagedPath> path) : loop_(loop), path_(std::move(path)) {}
  void over(uint64_t id) override {
    loop_.post([weak = path_, id] {
      if (const auto path = weak.lock()) path->go_on(id);
    });
  }

 private:
  net::Loop& loop_;
  const std::weak_ptr<StagedPath> path_;
};

StagedPath::StagedPath(std::weak_ptr<PathOwner> owner, net::Loop& loop,
                       std::shared_ptr<StagingArea> area, std::shared_ptr<const HostPaths> paths)
    : owner_(std::move(owner)), loop_(loop), area_(std::move(area)), paths_(std::move(paths)) {}

StagedPath::~StagedPath() = default;

StagedPath::Turn StagedPath::enter() {
  Turn turn{owner_.lock(), {}, std::unique_lock(mutex_)};
  if (watch_ == nullptr) watch_ = std::make_shared<Watch>(loop_, weak_from_this());
  return turn;
}

std::optional<Reach> StagedPath::reach(const Segment& local, const RemoteSegment& remote,
                                       Op op) const {
  if (local.far == nullptr) return std::nullopt;
  const auto there = paths_->reach(*area_->segment(), remote, op);
  if (!there) return std::nullopt;
  return Reach{std::min(kFar.bandwidth, there->bandwidth), kFar.base_s + there->base_s};
}

PostResult StagedPath::post(Attempt& attempt) {
  const Slice& slice = attempt.slice;
  const Request& request = *slice.request;
  if (slice.bytes > StagingPool::kBufferBytes)  // our slices are smaller
    return {Posted::kRefused, Status::kTransportUnavailable};
  Job job{&attempt, attempt.owner, request.local,
          Request{request.op,
                  area_->segment(),
                  request.remote,
                  {},
                  slice.bytes,
                  request.verify,
                  false,
                  request.grant}};
  slice.each([&](const Range& range) { job.ranges.push_back(range); });
  const Turn turn = enter();
  if (closed_ != Status::kOk) return {Posted::kRefused, closed_};
  jobs_.emplace(++last_id_, std::move(job));
  queue_.push_back(last_id_);
  return {Posted::kTaken};
}

void StagedPath::kick() {
  {
    const std::lock_guard lock(mutex_);
    if (queue_.empty() || waits_for_buffer_ || std::exchange(woken_, true)) return;
  }
  loop_.post([weak = weak_from_this()] {
    if (const auto path = weak.lock()) path->begin_queued();
  });
}

void StagedPath::buffer_free() {
  loop_.post([weak = weak_from_this()] {
    const auto path = weak.lock();
    if (path == nullptr) return;
    {
      const std::lock_guard lock(path->mutex_);
      path->waits_for_buffer_ = false;
    }
    path->begin_queued();
  });
}

void StagedPath::begin_queued() {
  {
    Turn turn = enter();
    woken_ = false;
    while (!queue_.empty() && !waits_for_buffer_ && buffers_ < kMostBuffers) {
      auto buffer = area_->take(weak_from_this());
      if (buffer == nullptr) {
        waits_for_buffer_ = true;
        return;
      }
      const uint64_t id = queue_.front();
      queue_.pop_front();
      Job& job = jobs_.at(id);
      uint64_t at = static_cast<uint64_t>(buffer.get() - area_->segment()->base);
      for (const Range& range : job.ranges) {
        job.transfer.ranges.push_back({at, range.remote, range.length});
        at += range.length;
      }
      job.buffer = std::move(buffer);
      ++buffers_;
      if (job.writes())
        start_move(turn, id);
      else
        start_transfer(turn, id);
    }
  }
  area_->pass_on();
}

void StagedPath::start_move(Turn& turn, uint64_t id) {
  Job& job = jobs_.at(id);
  job.step = Step::kMoves;
  job.move = job.local->far->move(!job.writes(), [self = shared_from_this(), id](Status status) {
    {
      const std::lock_guard lock(self->mutex_);
      self->jobs_.at(id).moved = status;
      self->moved_.notify_all();
    }
    self->loop_.post([weak = self->weak_from_this(), id] {
      if (const auto path = weak.lock()) path->go_on(id);
    });
  });
  std::byte* at = job.buffer.get();
  for (const Range& range : job.ranges) {
    job.move->add(range.local, at, range.length);
    at += range.length;
  }
  FarMove& move = *job.move;
  FarMemory& far = *job.local->far;
  turn.lock.unlock();
  far.pass_through(area_->memory(), StagingPool::kBytes);
  move.start();
  turn.lock.lock();
}

void StagedPath::start_transfer(Turn& turn, uint64_t id) {
  const auto found = jobs_.find(id);
  Job& job = found->second;
  job.step = Step::kTransfers;
  try {
    job.batch = std::make_shared<Batch>(std::vector{job.transfer}, Clock::time_point::max(), 0, 0);
  } catch (const TransferFailure&) {
    return end(turn, found, Status::kEngineClosed);  // the buffers are deregistered with it
  }
  job.batch->tell(watch_, id);
  // Posting may find the peer gone, and close this path, which then finds no job half begun.
  job.batch->enqueue();
  turn.lock.unlock();
  if (turn.owner != nullptr) turn.owner->fill();
  turn.lock.lock();
}

void StagedPath::stop_transfer(Turn& turn, uint64_t id) {
  const Job& job = jobs_.at(id);
  const std::shared_ptr<Batch> batch = job.batch;
  const bool give_up = job.given_up || !job.writes();
  turn.lock.unlock();
  batch->stop(Status::kCancelled, give_up ? Clock::duration::zero() : Clock::duration(kNoEnd));
  if (give_up) batch->check_time(Clock::now());
  turn.lock.lock();
  advance(turn, id);
}

Status StagedPath::why_stopped() const {
  return closed_ == Status::kOk ? Status::kCancelled : closed_;
}

void StagedPath::advance(Turn& turn, uint64_t id) {
  const auto found = jobs_.find(id);
  if (found == jobs_.end()) return;
  Job& job = found->second;
  const bool first = job.step == (job.writes() ? Step::kMoves : Step::kTransfers);
  Status status = Status::kOk;
  if (job.step == Step::kMoves) {
    if (!job.moved) return;
    status = *job.moved;
  } else {
    if (!job.batch->over()) return;
    status = status_of(*job.batch);
  }
  if (status == Status::kCancelled || (first && status == Status::kOk && job.stopped))
    status = why_stopped();
  if (!first || status != Status::kOk) {
    const bool settled = !job.writes() || job.batch == nullptr || job.batch->settled();
    end(turn, found, status, settled);
  } else if (job.writes()) {
    start_transfer(turn, id);
  } else {
    start_move(turn, id);
  }
}

void StagedPath::end(Turn& turn, Jobs::iterator job, Status status, bool settled) {
  Job ended = std::move(job->second);
  const uint64_t id = job->first;
  jobs_.erase(job);
  if (ended.buffer != nullptr) --buffers_;
  settled = settled || !ended.batch->tell_settled(watch_, id);
  if (!settled) in_doubt_.emplace(id, Doubt{ended.attempt, ended.batch});
  if (turn.owner != nullptr) turn.owner->completed(*ended.attempt, status, settled);
  ended.buffer = nullptr;
  turn.ended.push_back(std::move(ended));
}

void StagedPath::go_on(uint64_t id) {
  std::shared_ptr<PathOwner> owner;
  std::map<uint64_t, Doubt>::node_type doubt;  // destroyed without the lock
  {
    Turn turn = enter();
    owner = turn.owner;
    if (const auto late = in_doubt_.find(id); late != in_doubt_.end()) {
      // Or this is the news of the batch's end, overtaken by who gave it up.
      if (late->second.batch->settled()) {
        if (owner != nullptr) owner->settled(*late->second.attempt);
        doubt = in_doubt_.extract(late);
      }
    } else {
      advance(turn, id);
    }
  }
  begin_queued();
  if (owner != nullptr) owner->fill();
}

// Null: of all.
void StagedPath::stop(Turn& turn, const void* owner, bool give_up) {
  std::vector<uint64_t> its;
  for (const auto& [id, job] : jobs_)
    if (owner == nullptr || job.owner == owner) its.push_back(id);
  for (const uint64_t id : its) {
    const auto found = jobs_.find(id);
    if (found == jobs_.end()) continue;
    Job& job = found->second;
    job.stopped = true;
    job.given_up |= give_up;
    switch (job.step) {
      case Step::kQueued:
        std::erase(queue_, id);
        end(turn, found, why_stopped());
        break;
      case Step::kMoves:
        job.move->cancel();
        break;
      case Step::kTransfers:
        stop_transfer(turn, id);
        break;
    }
  }
}

void StagedPath::revoke(const void* owner) {
  Turn turn = enter();
  stop(turn, owner, false);
}

void StagedPath::abandon(const void* owner) {
  Turn turn = enter();
  stop(turn, owner, true);
}

void StagedPath::close(Status why) {
  constexpr std::chrono::milliseconds kLook(1);
  Turn turn = enter();
  if (closed_ == Status::kOk) closed_ = why;
  stop(turn, nullptr, true);
  while (!jobs_.empty()) {
    std::vector<uint64_t> all;
    for (const auto& [id, job] : jobs_) all.push_back(id);
    for (const uint64_t id : all) advance(turn, id);
    if (!jobs_.empty()) moved_.wait_for(turn.lock, kLook);
  }
  in_doubt_.clear();  // the dispatcher knows what becomes of the batches' attempts
}

}  // namespace inlay::transfer
