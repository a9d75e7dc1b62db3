#include "dispatch.h"

#include <algorithm>
#include <array>

#include "../core/crc32c.h"

namespace inlay::transfer {

namespace {

constexpr uint16_t kMaxTries = 8;
// Bytes that come damaged so often are damaged by something that stays.
constexpr uint8_t kMaxDamaged = 4;
constexpr std::chrono::milliseconds kFirstSubmitRest(100);
constexpr std::chrono::milliseconds kLongestSubmitRest(500);
// Of several connections to a process that ends one is seen to end first; the peer is lost with the
// last. Until then no memory counts as out of reach.
constexpr std::chrono::milliseconds kEnding(500);

bool is_paths_fault(Status status) {
  switch (status) {
    case Status::kPeerUnreachable:
    case Status::kPeerDied:
    case Status::kProtocol:
    case Status::kTransportUnavailable:
    case Status::kChecksum:
      return true;
    default:
      return false;
  }
}

}  // namespace

Dispatch::Dispatch(net::Loop& loop) : loop_(loop) {}

void Dispatch::add(Part& part) {
  const std::lock_guard lock(mutex_);
  part.added = true;
  part.self = part.batch->shared_from_this();
  parts_.push_back(&part);
  if (failed_ != Status::kOk) {
    for (const uint32_t request : part.requests) fail_request(part, request, failed_);
    part.stopped = true;
  }
  if (part.stopped)
    finish_if_over(part);
  else
    enqueue(part);
}

template <typename Act>
void Dispatch::each_busy_path(std::unique_lock<std::mutex>& lock, Act&& act) {
  std::vector<std::shared_ptr<Path>> paths;
  for (const auto& entry : entries_)
    if (entry->posted > 0) paths.push_back(entry->path);
  lock.unlock();
  for (const auto& path : paths) act(*path);
  lock.lock();
}

void Dispatch::stop(Part& part) {
  std::unique_lock lock(mutex_);
  if (part.finished) return;
  part.stopped = true;
  if (!part.added) return;
  part.again.clear();
  dequeue(part);
  if (part.outstanding > 0) each_busy_path(lock, [&](Path& path) { path.revoke(part.batch); });
  finish_if_over(part);
}

void Dispatch::give_up(Part& part) {
  std::unique_lock lock(mutex_);
  if (part.finished || !part.added) return;
  part.given_up = true;
  for (Sent& sent : sent_)
    if (sent.mark == Mark::kInDoubt && sent.part == &part) leave_unsettled(sent);
  each_busy_path(lock, [&](Path& path) { path.abandon(part.batch); });
  finish_if_over(part);
}

void Dispatch::fill() {
  std::vector<std::shared_ptr<const void>> ended;
  std::array<std::shared_ptr<Path>, 8> posted_to;
  std::size_t num_posted_to = 0;
  const auto kick = [&] {
    for (std::size_t i = 0; i < num_posted_to; ++i) {
      posted_to[i]->kick();
      posted_to[i] = nullptr;
    }
    num_posted_to = 0;
  };
  std::unique_lock lock(mutex_);
  while (!queue_.empty()) {
    Sent* const sent = draw();
    if (sent == nullptr) break;
    Entry& entry = *sent->entry;
    const void* const owner = sent->owner;
    lock.unlock();
    const PostResult result = entry.path->post(*sent);
    if (result.how == Posted::kDone) sum_up(*sent);
    const auto known = posted_to.begin() + static_cast<std::ptrdiff_t>(num_posted_to);
    if (result.how == Posted::kTaken && std::find(posted_to.begin(), known, entry.path) == known) {
      if (num_posted_to == posted_to.size()) kick();
      posted_to[num_posted_to++] = entry.path;
    }
    lock.lock();
    sent->posting = false;
    bool stopped = false;
    bool given_up = false;
    if (result.how == Posted::kDone) {
      finish(*sent, Status::kOk, true);
    } else if (result.how == Posted::kRefused) {
      finish(*sent, result.why, true);
    } else if (sent->over) {  // reported meanwhile
      recycle(*sent);
    } else if (sent->part != nullptr) {
      stopped = sent->part->stopped;
      given_up = sent->part->given_up;
    }
    if (stopped) {  // while it was posted, so the path did not know it yet
      lock.unlock();
      entry.path->revoke(owner);
      if (given_up) entry.path->abandon(owner);
      lock.lock();
    }
    --entry.posting;
    remove_if_unused(entry);
  }
  ended.swap(ended_);
  lock.unlock();
  kick();
}

// Slices end in any order: each one's sum goes past the bytes that follow it, which leaves nothing
// but an exclusive or. Without the lock, since a path that did not sum has the bytes passed once
// more.
void Dispatch::sum_up(Attempt& attempt) {
  const Slice& slice = attempt.slice;
  if (!slice.request->checksum) return;
  uint32_t sum = attempt.sum.value_or(0);
  if (!attempt.sum)
    slice.each([&](const Range& range) {
      sum = crc32c({slice.request->local->base + range.local, range.length}, sum);
    });
  attempt.sum = crc32c_combine(sum, 0, slice.bytes_after());
}

void Dispatch::completed(Attempt& attempt, Status status, bool settled) {
  if (status == Status::kOk) sum_up(attempt);
  const std::lock_guard lock(mutex_);
  finish(static_cast<Sent&>(attempt), status, settled);
}

void Dispatch::finish(Sent& sent, Status status, bool settled) {
  Entry& entry = *sent.entry;
  Part& part = *sent.part;
  --entry.posted;
  if (status == Status::kOk) {
    const Clock::time_point now = Clock::now();
    entry.estimate->completed(sent.slice.bytes, sent.ticket, time_of(now));
    entry.record->counts.completed(sent.slice.request->op, sent.slice.bytes,
                                   sent.ticket.predicted_s,
                                   std::chrono::duration<double>(now - sent.sent).count());
  } else {
    entry.estimate->dropped(sent.slice.bytes);
  }
  const bool paths_fault = is_paths_fault(status) && !entry.path->passes_on();
  if (paths_fault) {
    ++entry.failures;
    entry.record->failed = status;
    const auto rest = kFirstSubmitRest * (1U << std::min(entry.failures - 1, 3U));
    entry.rests_until = Clock::now() + std::min<Clock::duration>(rest, kLongestSubmitRest);
    entry.estimate->restart(time_of(entry.rests_until));
    loop_.wake_by(entry.rests_until);
  } else if (status == Status::kOk && entry.failures > 0) {
    entry.failures = 0;
    entry.rests_until = {};
  }
  if (!settled) {
    ++entry.in_doubt;
    sent.mark = Mark::kInDoubt;
    if (part.given_up || failed_ != Status::kOk) leave_unsettled(sent);
    return;
  }
  if (status == Status::kOk) {
    Batch::Progress& progress = part.batch->progress_[sent.request];
    progress.bytes_done += sent.slice.bytes;
    progress.checksum ^= sent.sum.value_or(0);
    // What was under way when all were to fail has come to a good end.
    if (progress.bytes_done == sent.slice.request->bytes) progress.error = Status::kOk;
  } else if (!paths_fault && status != Status::kCancelled) {
    fail_request(part, sent.request, status);
  } else {
    try_again(sent, status);
  }
  end(sent);
}

// Posts the slice again, except where nobody wants it any more.
void Dispatch::try_again(Sent& sent, Status why) {
  Part& part = *sent.part;
  if (failed_ != Status::kOk) return fail_request(part, sent.request, failed_);
  if (part.stopped || part.batch->progress_[sent.request].error != Status::kOk) return;
  const auto number = static_cast<uint16_t>(sent.number + (why == Status::kCancelled ? 0 : 1));
  const auto damaged = static_cast<uint8_t>(sent.damaged + (why == Status::kChecksum ? 1 : 0));
  if (number == kMaxTries || damaged == kMaxDamaged) return fail_request(part, sent.request, why);
  ++sent.entry->record->counts.retries[why];
  part.again.push_back({sent.slice, sent.request, sent.slice_id, number, damaged});
  enqueue(part);
}

void Dispatch::end(Sent& sent) {
  Part& part = *sent.part;
  Entry& entry = *sent.entry;
  recycle(sent);
  --part.outstanding;
  finish_if_over(part);
  remove_if_unused(entry);
}

void Dispatch::recycle(Sent& sent) {
  sent.part = nullptr;
  sent.over = sent.posting;  // then fill() does it
  if (sent.posting) return;
  sent.mark = Mark::kFree;
  free_.push_back(&sent);
}

void Dispatch::leave_unsettled(Sent& sent) {
  Part& part = *sent.part;
  ++part.batch->unsettled_;
  sent.mark = Mark::kUnsettled;
  sent.batch = part.batch->shared_from_this();
  if (failed_ != Status::kOk) fail_request(part, sent.request, failed_);  // it may be the last
  sent.part = nullptr;
  --part.outstanding;
  finish_if_over(part);
}

void Dispatch::settled(Attempt& attempt) {
  const std::lock_guard lock(mutex_);
  Sent& sent = static_cast<Sent&>(attempt);
  if (!nothing_lands_ && is_doubtful(sent)) end_doubt(sent);  // else a fence's answer was first
}

void Dispatch::end_doubt(Sent& sent) {
  Entry& entry = *sent.entry;
  --entry.in_doubt;
  if (sent.mark == Mark::kInDoubt) {
    try_again(sent, Status::kPeerUnreachable);
    end(sent);
    return;
  }
  if (sent.batch != nullptr) {
    sent.batch->attempt_settled();
    ended_.push_back(std::move(sent.batch));
  }
  recycle(sent);
  remove_if_unused(entry);
}

void Dispatch::fail_request(Part& part, uint32_t request, Status why) {
  Batch::Progress& progress = part.batch->progress_[request];
  const Request& asked = part.batch->requests_[request];
  if (why == Status::kSegmentClosed) asked.remote->closed = true;
  if (progress.error == Status::kOk && progress.bytes_done < asked.bytes) progress.error = why;
  std::erase_if(part.again, [&](const Retry& retry) { return retry.request == request; });
}

void Dispatch::finish_if_over(Part& part) {
  if (part.finished || part.outstanding > 0 || !part.added) return;
  if (!part.stopped && (!part.again.empty() || part.has_next())) return;
  part.finished = true;
  dequeue(part);
  std::erase(parts_, &part);
  ended_.push_back(std::move(part.self));
  part.batch->part_finished();
}

void Dispatch::add_path(std::shared_ptr<Path> path) {
  const std::lock_guard lock(mutex_);
  auto entry = std::make_unique<Entry>();
  entry->id = ++last_entry_;
  entry->record = &records_[{std::string(path->transport()), path->name()}];
  entry->path = std::move(path);
  entries_.push_back(std::move(entry));
  ++version_;
}

uint64_t Dispatch::remove_path(const Path& path, Status why) {
  const std::lock_guard lock(mutex_);
  const auto found =
      std::ranges::find(entries_, &path, [](const auto& e) { return e->path.get(); });
  if (found == entries_.end()) return 0;
  Entry& entry = **found;
  entry.lost = true;
  entry.record->ended = why;
  ++version_;
  ending_until_ = Clock::now() + kEnding;
  loop_.wake_by(ending_until_);
  const uint64_t id = entry.in_doubt > 0 ? entry.id : 0;
  remove_if_unused(entry);
  return id;
}

void Dispatch::remove_if_unused(Entry& entry) {
  if (!entry.lost || entry.posted > 0 || entry.posting > 0 || entry.in_doubt > 0) return;
  ended_.push_back(std::move(entry.path));
  std::erase_if(entries_, [&](const auto& held) { return held.get() == &entry; });
}

void Dispatch::settle(uint64_t removed) {
  const std::lock_guard lock(mutex_);
  for (Sent& sent : sent_)
    if (is_doubtful(sent) && sent.entry->id == removed) end_doubt(sent);
}

void Dispatch::settle_all() {
  {
    const std::lock_guard lock(mutex_);
    nothing_lands_ = true;
    for (Sent& sent : sent_)
      if (is_doubtful(sent)) end_doubt(sent);
  }
  fill();
}

bool Dispatch::is_doubtful(const Sent& sent) {
  return sent.mark == Mark::kInDoubt || sent.mark == Mark::kUnsettled;
}

void Dispatch::fail(Status why, bool settled) {
  std::vector<std::shared_ptr<Path>> paths;
  {
    const std::lock_guard lock(mutex_);
    if (failed_ != Status::kOk) return;
    failed_ = why;
    for (const auto& entry : entries_) {
      entry->lost = true;
      entry->record->ended = why;
      paths.push_back(entry->path);
    }
    ++version_;
  }
  for (const auto& path : paths) path->close(why);
  {
    const std::lock_guard lock(mutex_);
    nothing_lands_ = settled;
    for (Sent& sent : sent_) {
      if (is_doubtful(sent) && settled)
        end_doubt(sent);
      else if (sent.mark == Mark::kInDoubt)
        leave_unsettled(sent);
    }
    const std::vector<Part*> parts = parts_;
    for (Part* part : parts) {
      for (const uint32_t request : part->requests) fail_request(*part, request, why);
      part->stopped = true;
      finish_if_over(*part);
    }
  }
  fill();
}

Clock::time_point Dispatch::settled_by() const {
  std::vector<std::shared_ptr<Path>> paths;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& entry : entries_)
      if (entry->in_doubt > 0) paths.push_back(entry->path);
  }
  Clock::time_point last{};
  for (const auto& path : paths) last = std::max(last, path->settled_by());
  return last;
}

void Dispatch::forget() {
  std::vector<std::shared_ptr<Batch>> batches;
  const std::lock_guard lock(mutex_);
  for (Sent& sent : sent_)
    if (sent.mark == Mark::kUnsettled) batches.push_back(std::move(sent.batch));
}

bool Dispatch::has_paths() const {
  const std::lock_guard lock(mutex_);
  return std::ranges::any_of(entries_, [](const auto& entry) { return !entry->lost; });
}

std::vector<std::shared_ptr<Batch>> Dispatch::batches() const {
  std::vector<std::shared_ptr<Batch>> batches;
  const std::lock_guard lock(mutex_);
  for (const Part* part : parts_) batches.push_back(part->self);
  return batches;
}

Batch::Progress Dispatch::progress(const Batch& batch, std::size_t index) const {
  const std::lock_guard lock(mutex_);
  Batch::Progress progress = batch.progress_[index];
  progress.complete = progress.bytes_done == batch.requests_[index].bytes;
  return progress;
}

std::vector<std::shared_ptr<Path>> Dispatch::paths() const {
  std::vector<std::shared_ptr<Path>> paths;
  const std::lock_guard lock(mutex_);
  for (const auto& entry : entries_)
    if (!entry->lost) paths.push_back(entry->path);
  return paths;
}

void Dispatch::busy_paths(std::vector<std::shared_ptr<Path>>& paths) const {
  const std::lock_guard lock(mutex_);
  for (const auto& entry : entries_)
    if (entry->posted > 0 && !entry->lost) paths.push_back(entry->path);
}

Clock::time_point Dispatch::next_try(Clock::time_point now) const {
  Clock::time_point next = Clock::time_point::max();
  const std::lock_guard lock(mutex_);
  if (ending_until_ > now && !queue_.empty()) next = ending_until_;
  for (const auto& entry : entries_)
    if (!entry->lost && entry->rests_until > now) next = std::min(next, entry->rests_until);
  return next;
}

}  // namespace inlay::transfer
