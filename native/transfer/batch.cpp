#include "batch.h"

#include <poll.h>

#include <algorithm>
#include <cstdio>

#include "lane.h"
#include "peer.h"

namespace inlay::transfer {

namespace {

// After the deadline, how long answers of writes are waited for: a living peer needs microseconds.
constexpr std::chrono::milliseconds kDeadlineGrace(50);

std::atomic<uint64_t> last_id{0};

// What wakes this thread in Batch::wait. A forked child makes its own.
const net::WakeUp& own_wake_up() {
  struct Own {
    net::WakeUp wake;
    unsigned generation = net::fork_generation();
  };
  static thread_local std::optional<Own> own;
  if (!own || own->generation != net::fork_generation()) own.emplace();
  own->wake.reset();
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

Batch::Batch(std::string name, const std::shared_ptr<Lane>& lane, Clock::time_point deadline,
             double deadline_s, int spin_us)
    : id_(++last_id),
      deadline_s_(deadline_s),
      spin_us_(spin_us),
      next_check_(deadline.time_since_epoch().count()) {
  auto part = std::make_unique<Part>();
  part->batch = this;
  part->lane = lane;
  part->lookup.emplace(Lookup{std::move(name), {}, Status::kOk});
  parts_.push_back(std::move(part));
}

Batch::~Batch() {
  if (over()) return;  // else it was never started
  for (const Request& request : requests_) request.local->leave();
}

void Batch::start(const std::vector<std::shared_ptr<Lane>>& lanes) {
  for (uint32_t i = 0; i < lanes.size(); ++i) {
    const auto found =
        std::ranges::find(parts_, lanes[i], [](const auto& part) { return part->lane; });
    Part* part = found == parts_.end() ? nullptr : found->get();
    if (part == nullptr) {
      part = parts_.emplace_back(std::make_unique<Part>()).get();
      part->batch = this;
      part->lane = lanes[i];
    }
    part->requests.push_back(i);
  }
  unfinished_parts_ = parts_.size();
  if (parts_.empty()) {
    state_.store(State::kDone, std::memory_order_release);
    return;
  }
  for (const auto& part : parts_) part->lane->add(*part);
}

void Batch::part_finished() {
  const std::lock_guard lock(mutex_);
  if (--unfinished_parts_ > 0) return;
  bool complete = true;
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    complete = complete && progress_[i].error == Status::kOk &&
               progress_[i].bytes_done == requests_[i].bytes;
    requests_[i].local->leave();
  }
  for (const auto& part : parts_)
    if (part->lookup) complete = complete && part->asked && stop_reason_ == Status::kOk;
  State state = complete ? State::kDone : State::kFailed;
  if (!complete && stop_reason_ == Status::kCancelled) state = State::kCancelled;
  if (!complete && stop_reason_ == Status::kTimeout) state = State::kTimedOut;
  state_.store(state, std::memory_order_release);
  for (const net::WakeUp* sleeper : sleepers_) sleeper->signal();
  for (const auto& [completions, key] : told_) completions->push(key);
}

bool Batch::tell(std::shared_ptr<Completions> completions, uint64_t key) {
  const std::lock_guard lock(mutex_);
  if (over()) return false;
  told_.emplace_back(std::move(completions), key);
  return true;
}

bool Batch::wait(Clock::time_point until) {
  if (over()) return true;
  const net::WakeUp& wake = own_wake_up();
  {
    const std::lock_guard lock(mutex_);
    if (over()) return true;
    sleepers_.push_back(&wake);
  }
  std::vector<Lane*> driven;
  for (const auto& part : parts_)
    if (part->lane->try_drive(wake)) driven.push_back(part->lane.get());
  std::vector<pollfd> polled(driven.size() + 1);
  Clock::time_point spin_end = Clock::now() + std::chrono::microseconds(spin_us_);
  while (!over()) {
    bool moved = false;
    for (Lane* lane : driven) moved |= lane->pump();
    if (over()) break;
    const Clock::time_point now = Clock::now();
    const Clock::time_point check = check_time(now);
    if (now >= until) break;
    if (moved) spin_end = now + std::chrono::microseconds(spin_us_);
    if (moved || (!driven.empty() && now < spin_end)) continue;
    for (std::size_t i = 0; i < driven.size(); ++i) {
      const int events = driven[i]->has_unsent() ? POLLIN | POLLOUT : POLLIN;
      polled[i] = {driven[i]->socket().get(), static_cast<short>(events), 0};
    }
    polled.back() = {wake.fd(), POLLIN, 0};
    // At least a little, so that a time that is due but not yet past does not spin.
    const auto nap =
        std::max<Clock::duration>(std::min(until, check) - now, std::chrono::microseconds(50));
    const auto nap_ns = std::min<int64_t>(
        std::chrono::duration_cast<std::chrono::nanoseconds>(nap).count(), 3'600'000'000'000);
    const timespec rest{static_cast<time_t>(nap_ns / 1'000'000'000), nap_ns % 1'000'000'000};
    if (ppoll(polled.data(), polled.size(), &rest, nullptr) > 0 && polled.back().revents != 0)
      wake.reset();
  }
  for (Lane* lane : driven) lane->stop_driving();
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
  for (const auto& part : parts_) part->lane->stop(*part);
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
    for (const auto& part : parts_) part->lane->give_up(*part);
  else
    stop(Status::kTimeout, kDeadlineGrace);
  return over() ? Clock::time_point::max() : Clock::time_point(Clock::duration(next_check_.load()));
}

Part* Batch::part_of(std::size_t request) {
  for (const auto& part : parts_)
    if (std::ranges::binary_search(part->requests, static_cast<uint32_t>(request)))
      return part.get();
  return nullptr;
}

Batch::Progress Batch::progress(std::size_t index) {
  return part_of(index)->lane->locked([&] {
    Progress now = progress_[index];
    now.complete = now.bytes_done == requests_[index].bytes;
    return now;
  });
}

bool Batch::uses(const Segment& segment) const {
  return std::ranges::any_of(
      requests_, [&](const Request& request) { return request.local.get() == &segment; });
}

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
    case Status::kSegmentRange:
      return {status, what + ": the peer's segment does not reach that far", name, peer};
    case Status::kPeerDied:
      return {status, what + ": its process ended or closed the connection", {}, peer};
    case Status::kPeerUnreachable:
      return {status,
              what + ": the connection was closed because the peer did not take what was sent",
              {},
              peer};
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
