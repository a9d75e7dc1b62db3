#include "copy_queue.h"

#include <algorithm>

#include "../core/crc32c.h"
#include "../core/stream_copy.h"

namespace inlay::transfer {

namespace {

// Copied by who submits: about 10 us, less than it takes to wake somebody.
constexpr uint64_t kInlineBytes = uint64_t{256} << 10;
// A close or a cancel waits for a piece, 10 to 40 us. From large ones two threads get a few
// percent more; what has few of those is cut smaller.
constexpr uint64_t kSmallPieceBytes = uint64_t{256} << 10;
constexpr uint64_t kLargePieceBytes = uint64_t{1} << 20;
constexpr uint64_t kLargePiecesFrom = 4 * kLargePieceBytes;

Slice draw(Slice& rest, uint64_t most) {
  Slice piece = rest;
  piece.num_ranges = 0;
  piece.bytes = 0;
  while (piece.bytes < most && rest.bytes > 0) {
    const uint64_t left = rest.request->ranges[rest.first].length - rest.skip;
    const uint64_t step = std::min({left, rest.bytes, most - piece.bytes});
    piece.bytes += step;
    ++piece.num_ranges;
    rest.bytes -= step;
    if (step == left) {
      ++rest.first;
      --rest.num_ranges;
      rest.skip = 0;
    } else {
      rest.skip += step;
    }
  }
  return piece;
}

}  // namespace

void RemoteMemory::copy_range(const Request& request, std::byte* to, const std::byte* from,
                              uint64_t bytes, bool streaming, uint32_t& sum) {
  if (request.checksum)
    sum = copy_crc32c(to, from, bytes, streaming, sum);
  else
    copy_bytes(to, from, bytes, streaming);
}

PostResult CopyQueue::start(Attempt& attempt, std::shared_ptr<const RemoteMemory> memory) {
  const void* owner = attempt.owner;
  {
    const std::lock_guard lock(mutex_);
    if (closed_ != Status::kOk) return {Posted::kRefused, closed_};
    if (attempt.submission_bytes > kInlineBytes) {
      enqueue(attempt, std::move(memory));
      return {Posted::kTaken};
    }
    inline_.push_back(owner);
  }
  uint32_t sum = 0;
  const Status status = memory->copy(attempt.slice, is_streaming(attempt.submission_bytes), sum);
  attempt.sum = sum;
  {
    const std::lock_guard lock(mutex_);
    inline_.erase(std::ranges::find(inline_, owner));
  }
  copied_.notify_all();
  if (status != Status::kOk) return {Posted::kRefused, status};
  return {Posted::kDone};
}

void CopyQueue::enqueue(Attempt& attempt, std::shared_ptr<const RemoteMemory> memory) {
  jobs_.push_back(std::make_unique<Job>(Job{&attempt, std::move(memory), attempt.slice}));
  undrawn_.push_back(jobs_.back().get());
}

void CopyQueue::call_crew() {
  {
    const std::lock_guard lock(mutex_);
    if (undrawn_.empty()) return;
  }
  crew_.call(shared_from_this());
}

bool CopyQueue::copy_piece() {
  Job* job;
  Slice piece;
  uint64_t follow;  // bytes of the slice behind the piece
  {
    const std::lock_guard lock(mutex_);
    if (undrawn_.empty()) return false;
    job = undrawn_.front();
    const bool large = job->attempt->submission_bytes >= kLargePiecesFrom;
    piece = draw(job->rest, large ? kLargePieceBytes : kSmallPieceBytes);
    follow = job->rest.bytes;
    if (follow == 0) undrawn_.pop_front();
    ++job->copying;
  }
  uint32_t sum = 0;
  const Status status = job->memory->copy(piece, is_streaming(job->attempt->submission_bytes), sum);
  if (piece.request->checksum) sum = crc32c_combine(sum, 0, follow);
  {
    const std::lock_guard lock(mutex_);
    job->sum ^= sum;
    --job->copying;
    if (status != Status::kOk && job->status == Status::kOk) {
      job->status = status;
      job->rest.bytes = 0;
      std::erase(undrawn_, job);
    }
    finish_if_over(*job);
  }
  copied_.notify_all();
  return true;
}

bool CopyQueue::do_piece() {
  if (!copy_piece()) return false;
  moved();
  return true;
}

void CopyQueue::finish_if_over(Job& job) {
  if (job.copying > 0 || job.rest.bytes > 0) return;
  const auto held = std::ranges::find(jobs_, &job, &std::unique_ptr<Job>::get);
  const std::unique_ptr<Job> finished = std::move(*held);
  *held = std::move(jobs_.back());
  jobs_.pop_back();
  finished->attempt->sum = finished->sum;
  copied(*finished->attempt, finished->status);
}

bool CopyQueue::is_copying(const void* owner) const {
  const auto is_owners = [owner](const void* of) { return owner == nullptr || of == owner; };
  return std::ranges::any_of(inline_, is_owners) ||
         std::ranges::any_of(jobs_, [&](const auto& job) {
           return is_owners(job->attempt->owner) && (job->copying > 0 || job->rest.bytes == 0);
         });
}

void CopyQueue::end_copies(std::unique_lock<std::mutex>& lock, const void* owner, Status why) {
  std::vector<Job*> ended;
  for (const auto& job : jobs_)
    if (owner == nullptr || job->attempt->owner == owner) ended.push_back(job.get());
  for (Job* job : ended) {
    // What is drawn to its end is as good as done.
    if (job->rest.bytes > 0 && job->status == Status::kOk) job->status = why;
    job->rest.bytes = 0;
    std::erase(undrawn_, job);
    finish_if_over(*job);
  }
  copied_.wait(lock, [&] { return !is_copying(owner); });
}

}  // namespace inlay::transfer
