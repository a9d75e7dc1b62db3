#include "batch.h"

#include <poll.h>

#include <algorithm>
#include <cstdio>
#include <optional>

#include "far_memory.h"
#include "peer.h"

namespace inlay::transfer {

namespace {

// After the deadline, how long answers of writes are waited for: a living peer needs microseconds.
constexpr std::chrono::milliseconds kDeadlineGrace(50);

std::atomic<uint64_t> last_id{0};

// What wakes this thread in Batch::wait. A forked child makes its own.
struct OwnWakeUp {
  net::WakeUp wake;
  unsigned generation = net::fork_generation();
};
thread_local std::optional<OwnWakeUp> own;

const net::WakeUp& own_wake_up() {
  if (!own || own->generation != net::fork_generation()) own.emplace();
  if (own->wake.signalled()) own->wake.reset();
  return own->wake;
}

std::string seconds(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%g s", value);
  return text;
}

}  // namespace

bool Part::has_next() {
  while (request < requests.size()) {
    const Request& now = batch->requests_[requests[request]];
    if (batch->progress_[requests[request]].error == Status::kOk && range < now.ranges.size())
      return true;
    ++request;
    range = 0;
    skip = 0;
  }
  return false;
}

Batch::Batch(std::vector<Request> requests, Clock::time_point deadline, double deadline_s,
             int spin_us)
    : requests_(std::move(requests)),
      progress_(requests_.size()),
      id_(++last_id),
      deadline_(deadline),
      deadline_s_(deadline_s),
      spin_us_(spin_us),
      next_check_(deadline.time_since_epoch().count()) {
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    if (requests_[i].local->enter()) continue;
    const std::string name = requests_[i].local->name;
    while (i > 0) requests_[--i].local->leave();
    throw TransferFailure(Status::kSegmentClosed, "segment '" + name + "' is deregistered", name);
  }
}

Batch::~Batch() {
  if (over()) return;  // else it was never started
  for (const Request& request : requests_) request.local->leave();
}

void Batch::enqueue() {
  for (uint32_t i = 0; i < requests_.size(); ++i) {
    const std::shared_ptr<Peer>& peer = requests_[i].remote->peer;
    const auto found = std::ranges::find(parts_, peer, [](const auto& part) { return part->peer; });
    Part* part = found == parts_.end() ? nullptr : found->get();
    if (part == nullptr) {
      part = parts_.emplace_back(std::make_unique<Part>()).get();
      part->batch = this;
      part->peer = peer;
    }
    part->requests.push_back(i);
    part->bytes += requests_[i].bytes;
    part->left = part->bytes;
  }
  unfinished_parts_ = parts_.size();
  if (parts_.empty()) {
    state_.store(State::kDone, std::memory_order_release);
    return;
  }
  for (const auto& part : parts_) part->peer->enqueue(*part);
}

void Batch::start() {
  enqueue();
  for (const auto& part : parts_) part->peer->fill();
}

void Batch::part_finished() {
  const std::lock_guard lock(mutex_);
  if (--unfinished_parts_ > 0) return;
  bool complete = true;
  for (std::size_t i = 0; i < requests_.size(); ++i)
    complete = complete && progress_[i].error == Status::kOk &&
               progress_[i].bytes_done == requests_[i].bytes;
  State state = complete ? State::kDone : State::kFailed;
  if (!complete && stop_reason_ == Status::kCancelled) state = State::kCancelled;
  if (!complete && stop_reason_ == Status::kTimeout) state = State::kTimedOut;
  // Who waits for a segment finds the batch over.
  state_.store(state, std::memory_order_release);
  for (const Request& request : requests_) request.local->leave();
  // Who ends the batch while it waits for it is awake.
  const net::WakeUp* const awake = own ? &own->wake : nullptr;
  for (const net::WakeUp* sleeper : sleepers_)
    if (sleeper != awake) sleeper->signal();
  for (const auto& [listener, key] : told_) listener->over(key);
  told_.clear();  // each holds a descriptor
}

bool Batch::tell(std::shared_ptr<Listener> listener, uint64_t key) {
  const std::lock_guard lock(mutex_);
  if (over()) return false;
  told_.emplace_back(std::move(listener), key);
  return true;
}

void Batch::attempt_settled() {
  const std::lock_guard lock(mutex_);
  if (unsettled_.fetch_sub(1) > 1) return;
  for (const auto& [listener, key] : told_settled_) listener->over(key);
  told_settled_.clear();
}

bool Batch::tell_settled(std::shared_ptr<Listener> listener, uint64_t key) {
  const std::lock_guard lock(mutex_);
  if (settled()) return false;
  told_settled_.emplace_back(std::move(listener), key);
  return true;
}

// The paths that this thread moves bytes on while it waits.
class Batch::Driving {
 public:
  Driving(const Batch& batch, const net::WakeUp& wake) : batch_(batch), wake_(wake) {}
  Driving(const Driving&) = delete;
  Driving& operator=(const Driving&) = delete;
  ~Driving() {
    for (const auto& path : paths_) path->stop_driving(wake_);
  }

  bool pump() {
    uint64_t version = 0;
    for (const auto& part : batch_.parts_) version += part->peer->dispatch().version();
    if (version != seen_) take_more();
    seen_ = version;
    bool moved = false;
    for (const auto& path : paths_) moved |= path->pump();
    if (moved)
      for (const auto& part : batch_.parts_) part->peer->fill();
    return moved;
  }
  bool empty() const { return paths_.empty(); }
  // Sleeps until something may be to do, or `nap` is over.
  void sleep(Clock::duration nap) {
    polled_.clear();
    for (const auto& path : paths_) polled_.push_back(path->sleep_on());
    polled_.push_back({wake_.fd(), POLLIN, 0});
    const auto nap_ns = std::min<int64_t>(
        std::chrono::duration_cast<std::chrono::nanoseconds>(nap).count(), 3'600'000'000'000);
    const timespec rest{static_cast<time_t>(nap_ns / 1'000'000'000), nap_ns % 1'000'000'000};
    if (ppoll(polled_.data(), polled_.size(), &rest, nullptr) > 0 && polled_.back().revents != 0)
      wake_.reset();
  }

 private:
  void take_more() {
    std::vector<std::shared_ptr<Path>> busy;
    for (const auto& part : batch_.parts_) part->peer->dispatch().busy_paths(busy);
    for (auto& path : busy)
      if (std::ranges::find(paths_, path) == paths_.end() && path->try_drive(wake_))
        paths_.push_back(std::move(path));
  }

  const Batch& batch_;
  const net::WakeUp& wake_;
  uint64_t seen_ = 0;
  std::vector<std::shared_ptr<Path>> paths_;
  std::vector<pollfd> polled_;
};

bool Batch::wait(Clock::time_point until) {
  if (over()) return true;
  const net::WakeUp& wake = own_wake_up();
  {
    const std::lock_guard lock(mutex_);
    if (over()) return true;
    sleepers_.push_back(&wake);
  }
  {
    Driving driving(*this, wake);
    Clock::time_point spin_end = Clock::now() + std::chrono::microseconds(spin_us_);
    while (!over()) {
      const bool moved = driving.pump();
      if (over()) break;
      const Clock::time_point now = Clock::now();
      const Clock::time_point check = check_time(now);  // may end the batch
      if (over() || now >= until) break;
      if (moved) spin_end = now + std::chrono::microseconds(spin_us_);
      if (moved) continue;
      if (!driving.empty() && now < spin_end) {
        std::this_thread::yield();  // to who is to answer, where they share this core
        continue;
      }
      // At least a little, so that a time that is due but not yet past does not spin.
      driving.sleep(
          std::max<Clock::duration>(std::min(until, check) - now, std::chrono::microseconds(50)));
    }
  }
  const std::lock_guard lock(mutex_);
  std::erase(sleepers_, &wake);
  return over();
}

void Batch::stop(Status reason, Clock::duration grace) {
  {
    const std::lock_guard lock(mutex_);
    if (over()) return;
    const Clock::rep give_up = (Clock::now() + grace).time_since_epoch().count();
    const bool first = stop_reason_ == Status::kOk;
    if (first) stop_reason_ = reason;
    if (first || give_up < next_check_.load()) next_check_.store(give_up);
    for (const net::WakeUp* sleeper : sleepers_) sleeper->signal();
    if (!first) return;
  }
  for (const auto& part : parts_) part->peer->stop(*part);
}

Clock::time_point Batch::check_time(Clock::time_point now) {
  if (over()) return Clock::time_point::max();
  const Clock::time_point due{Clock::duration(next_check_.load())};
  if (now < due) return due;
  bool stopping = false;
  {
    const std::lock_guard lock(mutex_);
    stopping = stop_reason_ != Status::kOk;
    if (Clock::duration(next_check_.load()) > now.time_since_epoch()) stopping = false;
  }
  if (stopping)
    for (const auto& part : parts_) part->peer->give_up(*part);
  else
    stop(Status::kTimeout, kDeadlineGrace);
  return over() ? Clock::time_point::max() : Clock::time_point(Clock::duration(next_check_.load()));
}

Batch::Progress Batch::progress(std::size_t index) {
  return requests_[index].remote->peer->dispatch().progress(*this, index);
}

bool Batch::uses(const Segment& segment) const {
  return std::ranges::any_of(requests_, [&](const Request& request) {
    return request.local.get() == &segment || request.remote.get() == segment.as_remote.get();
  });
}

namespace {

std::optional<FarMemory::Problem> problem_of(const std::shared_ptr<Segment>& segment) {
  if (segment == nullptr || segment->far == nullptr || !segment->enter()) return std::nullopt;
  FarMemory::Problem problem = segment->far->problem();
  segment->leave();
  return problem;
}

TransferFailure far_failure(const Request& request, Status status, const std::string& what) {
  const RemoteSegment& remote = *request.remote;
  const auto here = problem_of(request.local);
  const auto there = problem_of(remote.own.lock());
  // Of two that may have met it, the local one if it ever met anything.
  const bool is_local =
      request.local->far != nullptr &&
      (remote.descriptor.location.place == net::Place::kHost || (here && !here->text.empty()));
  const auto& known = is_local ? here : there;
  std::string text = what;
  if (known)
    text += ": " + known->text;
  else
    text += status == Status::kStorageFull ? ": the disk of its file is full"
            : status == Status::kDevice    ? ": its device does not copy there"
                                           : ": its file cannot be read or written there";
  TransferFailure failure(status, text, is_local ? request.local->name : remote.name,
                          is_local ? std::string() : remote.peer->address);
  if (known) failure.system_error = known->system_error;
  return failure;
}

}  // namespace

TransferFailure Batch::failure_of(std::size_t index, Status status) const {
  const Request& request = requests_[index];
  const std::string& name = request.remote->name;
  const std::string& peer = request.remote->peer->address;
  const std::string what = std::string(request.op == Op::kRead ? "read from" : "write to") +
                           " segment '" + name + "' of peer " + peer;
  switch (status) {
    case Status::kSegmentClosed:
      return {status, what + ": the peer has deregistered it; look it up again", name, peer};
    case Status::kSegmentAccess:
      return {status, what + ": the peer does not allow that", name, peer};
    case Status::kGrant:
      return {status, what + ": the peer has granted it no such write, or no more", name, peer};
    case Status::kSegmentRange:
      return {status, what + ": the peer's segment does not reach that far", name, peer};
    case Status::kPeerDied:
      return {status, what + ": its process ended or closed the connection", {}, peer};
    case Status::kPeerUnreachable:
      return {status, what + ": there is no way left to the peer", {}, peer};
    case Status::kTransportUnavailable:
      return {status,
              what + (request.verify ? ": no transport of this engine that verifies reaches that "
                                       "memory; use transport tcp, or verify=False"
                                     : ": no transport of this engine reaches that memory"),
              name, peer};
    case Status::kChecksum:
      return {status,
              what +
                  ": its bytes came damaged four times; do not use them, and check what they "
                  "pass (network cards, cables, memory)",
              name, peer};
    case Status::kStorageFull:
    case Status::kFile:
    case Status::kDevice:
      return far_failure(request, status, what);
    case Status::kEngineClosed:
      return {status, what + ": this engine is closed", {}, peer};
    default:
      return {status, what + ": the peer broke the protocol", {}, peer};
  }
}

TransferFailure Batch::failure() {
  std::size_t failed = requests_.size();
  std::size_t done = 0;
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    const Progress now = progress(i);
    done += now.complete;
    if (failed == requests_.size() && !now.complete) failed = i;
  }
  if (state() == State::kFailed) return failure_of(failed, progress(failed).error);
  const std::string& peer = requests_[failed].remote->peer->address;
  const std::string rest = std::to_string(requests_.size() - done) + " of " +
                           std::to_string(requests_.size()) +
                           " transfers were not complete (the first is with peer " + peer + ")";
  const bool late = state() == State::kTimedOut;
  const bool landed = settled();
  std::string text =
      late ? rest + " after " + seconds(deadline_s_) : "the batch was cancelled; " + rest;
  if (!landed) text += "; writes that the peer did not answer may still land there";
  TransferFailure failure(late ? Status::kTimeout : Status::kCancelled, text, {}, peer);
  failure.remote_settled = landed;
  return failure;
}

}  // namespace inlay::transfer
