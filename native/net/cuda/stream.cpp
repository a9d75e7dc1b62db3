#include "stream.h"

#include <sys/prctl.h>

#include <algorithm>
#include <utility>

#include "../../core/errors.h"
#include "../../core/start_thread.h"
#include "../../core/status.h"

namespace inlay::net::cuda {

namespace {

constexpr unsigned kNonBlocking = 1;    // CU_STREAM_NON_BLOCKING: not ordered with stream 0
constexpr unsigned kDisableTiming = 2;  // CU_EVENT_DISABLE_TIMING
// Under way at a time: what keeps a device busy while the next ones are prepared. What is under way
// cannot be called back, so a cancel or a stop waits for so much.
constexpr uint64_t kMostBytes = uint64_t{16} << 20;
constexpr std::size_t kMostCopies = 64;
// Between two looks at an event: at first as short as a sleep can be, then a part of the time that
// was waited already.
constexpr std::chrono::microseconds kShortestPause(10);
constexpr std::chrono::microseconds kLongestPause(500);

}  // namespace

void Copies::add(Address to, Address from, uint64_t bytes) {
  runs_.push_back({to, from, bytes});
  bytes_ += bytes;
}

Stream::Stream(const Driver& driver, Context context, int spin_us)
    : driver_(driver), context_(context), spin_us_(spin_us) {
  const Current current(driver_, context_);
  Result result = current.result();
  if (result == kSuccess) result = driver_.create_stream(&stream_, kNonBlocking);
  if (result != kSuccess)
    throw TransferFailure(Status::kTransportUnavailable,
                          error_text(driver_, "cuStreamCreate", result));
  try {
    thread_ = start_thread([this] { run(); });
  } catch (...) {
    driver_.destroy_stream(stream_);
    throw;
  }
}

void Stream::post(std::shared_ptr<Copies> copies) {
  {
    const std::lock_guard lock(mutex_);
    if (!stopping_) {
      waiting_.push_back(std::move(copies));
      posted_.notify_one();
      return;
    }
  }
  end(*copies, Copies::kCancelled);
}

void Stream::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    for (const auto& copies : waiting_) copies->cancel();
  }
  posted_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void Stream::run() {
  prctl(PR_SET_TIMERSLACK, 1000UL);  // else a pause of 10 us takes 60
  const Current current(driver_, context_);
  Clock::time_point since = Clock::now();
  for (;;) {
    if (auto copies = take()) {
      begin(std::move(copies));
      since = Clock::now();
      continue;
    }
    if (under_way_.empty()) break;  // and stopped
    const std::size_t before = under_way_.size();
    look();
    if (under_way_.size() < before)
      since = Clock::now();
    else
      pause(since);
  }
  for (const Event event : events_) driver_.destroy_event(event);
  driver_.destroy_stream(stream_);
}

// The next to begin, or none: there is room for no more, or something else to do. Sleeps while
// there is nothing at all.
std::shared_ptr<Copies> Stream::take() {
  std::unique_lock lock(mutex_);
  if (under_way_.empty()) posted_.wait(lock, [this] { return stopping_ || !waiting_.empty(); });
  const bool room = bytes_under_way_ < kMostBytes && under_way_.size() < kMostCopies;
  if (waiting_.empty() || !room) return nullptr;
  auto copies = std::move(waiting_.front());
  waiting_.pop_front();
  return copies;
}

Event Stream::take_event(Result& result) {
  Event event = nullptr;
  if (events_.empty()) {
    result = driver_.create_event(&event, kDisableTiming);
    return result == kSuccess ? event : nullptr;
  }
  event = events_.back();
  events_.pop_back();
  return event;
}

void Stream::begin(std::shared_ptr<Copies> copies) {
  Result result = kSuccess;
  bool any = false;
  for (const Copies::Run& run : copies->runs_) {
    if (copies->cancelled_.load()) result = Copies::kCancelled;
    if (result == kSuccess) result = driver_.copy(run.to, run.from, run.bytes, stream_);
    if (result != kSuccess) break;
    any = true;
  }
  if (any) {
    // Also of what failed half-way: its first copies still run.
    Result recorded = kSuccess;
    const Event event = take_event(recorded);
    if (event != nullptr) recorded = driver_.record_event(event, stream_);
    if (recorded == kSuccess) {
      bytes_under_way_ += copies->bytes_;
      under_way_.push_back({std::move(copies), event, result});
      return;
    }
    if (event != nullptr) events_.push_back(event);
    const Result ended = driver_.synchronize_stream(stream_);
    if (result == kSuccess) result = ended != kSuccess ? ended : recorded;
  }
  // It may end what holds the copies.
  std::exchange(copies->done_, nullptr)(result);
}

void Stream::look() {
  while (!under_way_.empty()) {
    const Result result = driver_.query_event(under_way_.front().event);
    if (result == kNotReady) return;
    const UnderWay ended = std::move(under_way_.front());
    under_way_.pop_front();
    bytes_under_way_ -= ended.copies->bytes_;
    events_.push_back(ended.event);
    std::exchange(ended.copies->done_, nullptr)(ended.result != kSuccess ? ended.result : result);
  }
}

void Stream::pause(Clock::time_point since) {
  const Clock::duration waited = Clock::now() - since;
  if (waited < std::chrono::microseconds(spin_us_)) return;
  const auto wanted = std::clamp<Clock::duration>(waited / 8, kShortestPause, kLongestPause);
  std::unique_lock lock(mutex_);
  // Woken by what is posted, if there is room for it.
  const std::size_t waiting = waiting_.size();
  posted_.wait_for(lock, wanted, [&] { return waiting_.size() > waiting; });
}

}  // namespace inlay::net::cuda
