#include "peer.h"

#include <algorithm>
#include <condition_variable>
#include <thread>

#include "../core/errors.h"

namespace inlay::transfer {

namespace {

constexpr std::chrono::milliseconds kAskAgainAfter(5);

}  // namespace

Peer::~Peer() {
  dispatch_.fail(Status::kEngineClosed, false);
  for (const auto& lane : lanes_) lane->close(Status::kEngineClosed);
}

void Peer::add_lane(std::shared_ptr<Lane> lane) {
  std::vector<Fence> fences;
  {
    const std::lock_guard lock(mutex_);
    lanes_.push_back(lane);
    fences.swap(fences_);
  }
  if (!alive()) lane->close(lost_.load());
  for (Fence& waiting : fences) fence(std::move(waiting));
}

std::vector<std::shared_ptr<Lane>> Peer::lanes() const {
  const std::lock_guard lock(mutex_);
  return lanes_;
}

void Peer::note_problem(std::string_view transport, std::string text) {
  const std::lock_guard lock(mutex_);
  problems_.push_back(std::string(transport) + ": " + std::move(text));
}

std::vector<std::string> Peer::problems() const {
  const std::lock_guard lock(mutex_);
  return problems_;
}

void Peer::enqueue(Part& part) { dispatch_.add(part); }

void Peer::stop(Part& part) {
  dispatch_.stop(part);
  fill();
}

void Peer::give_up(Part& part) {
  dispatch_.give_up(part);
  fill();
}

bool Peer::hold(const std::string& transport, const std::string& name, bool held) {
  const bool found = dispatch_.hold(transport, name, held);
  fill();  // other paths, or this one again
  return found;
}

void Peer::fill() {
  const auto self = shared_from_this();  // what ended may hold the last other reference
  dispatch_.fill();
}

void Peer::completed(Attempt& attempt, Status status, bool settled) {
  dispatch_.completed(attempt, status, settled);
}

void Peer::settled(Attempt& attempt) { dispatch_.settled(attempt); }

void Peer::add(std::shared_ptr<Path> path) {
  if (alive()) {
    if (!path->passes_on()) host_paths_->add(path);
    dispatch_.add_path(path);
    fill();
  }
  if (alive()) return;
  host_paths_->clear();
  path->close(lost_.load());
}

void Peer::stage_through(const std::shared_ptr<StagingArea>& area) {
  std::call_once(staged_, [&] {
    add(std::make_shared<StagedPath>(weak_from_this(), loop_, area, host_paths_));
  });
}

void Peer::watch_lanes(std::function<void(const Path&)> lost) {
  const std::lock_guard lock(mutex_);
  lane_lost_ = std::move(lost);
}

void Peer::lost(Path& path, Status why) {
  const auto self = shared_from_this();
  const uint64_t removed = dispatch_.remove_path(path, why);
  host_paths_->remove(path);
  bool last = false;
  std::function<void(const Path&)> lane_lost;
  {
    const std::lock_guard lock(mutex_);
    const bool was_lane = std::erase_if(lanes_, [&](const auto& lane) {
                            return static_cast<const Path*>(lane.get()) == &path;
                          }) > 0;
    last = was_lane && lanes_.empty();
    if (was_lane) lane_lost = lane_lost_;
  }
  // The other end closes all at once when its process ends.
  const bool ended = last && (why == Status::kPeerDied || !lane_lost);
  if (ended || why == Status::kProtocol) return lose(why, ended && why == Status::kPeerDied);
  if (lane_lost) lane_lost(path);
  if (removed != 0) settle_at(path.settled_by(), removed);
  // What the peer closed needs no fence. Where nothing is in doubt it is asked, too, so that the
  // peer does not keep what is of no use.
  if (Bytes question = path.fence(); !question.empty() && why != Status::kPeerDied)
    fence({std::string(path.transport()), std::move(question), removed});
  fill();
}

// Has the target shut what is in doubt, over any lane that is left.
void Peer::fence(Fence fence) {
  {
    const std::lock_guard lock(mutex_);
    if (lanes_.empty()) {  // add_lane() goes on
      fences_.push_back(std::move(fence));
      return;
    }
  }
  const std::string transport = fence.transport;
  const Bytes question = fence.question;
  ask(transport, question, [weak = weak_from_this(), fence](Status status, const Bytes&) {
    const auto peer = weak.lock();
    if (peer == nullptr || !peer->alive()) return;
    if (status != Status::kOk) return peer->fence(fence);
    peer->dispatch_.settle(fence.removed);
    peer->fill();
  });
}

void Peer::lose(Status why, bool remote_gone) {
  Status none = Status::kOk;
  if (!lost_.compare_exchange_strong(none, why)) return;
  std::vector<std::shared_ptr<Lane>> lanes;
  {
    const std::lock_guard lock(mutex_);
    lanes.swap(lanes_);
  }
  dispatch_.fail(why, remote_gone);
  host_paths_->clear();  // not before, or far memory is out of reach for a moment
  for (const auto& lane : lanes) lane->close(why);
  settle_at(dispatch_.settled_by(), kAll);
}

void Peer::settle_at(Clock::time_point time, uint64_t removed) {
  if (time == Clock::time_point::max()) return;
  {
    const std::lock_guard lock(mutex_);
    settled_by_.emplace_back(time, removed);
  }
  loop_.wake_by(time);
}

bool Peer::settles() const {
  const std::lock_guard lock(mutex_);
  return !settled_by_.empty();
}

Clock::time_point Peer::settle_due(Clock::time_point now) {
  std::vector<uint64_t> due;
  Clock::time_point next = Clock::time_point::max();
  {
    const std::lock_guard lock(mutex_);
    std::erase_if(settled_by_, [&](const auto& one) {
      if (one.first <= now) due.push_back(one.second);
      return one.first <= now;
    });
    for (const auto& one : settled_by_) next = std::min(next, one.first);
  }
  for (const uint64_t removed : due) {
    if (removed == kAll)
      dispatch_.settle_all();
    else
      dispatch_.settle(removed);
  }
  return next;
}

void Peer::ask(net::Kind kind, Bytes question, Then then) {
  std::shared_ptr<Lane> lane;
  {
    const std::lock_guard lock(mutex_);
    // Answers come in the order of requests: not behind large ones, where that can be had.
    for (const auto& other : lanes_)
      if (lane == nullptr || other->traffic() == Traffic::kSmall) lane = other;
  }
  if (lane == nullptr) {
    const Status why = lost_.load();
    then(why == Status::kOk ? Status::kPeerUnreachable : why, {});
  } else {
    lane->ask(kind, std::move(question), std::move(then));
  }
}

void Peer::ask(std::string_view transport, Bytes question, Then then) {
  ask(net::Kind::kAsk, net::encode_question(transport, question), std::move(then));
}

template <typename T, typename Start>
std::pair<Status, T> Peer::wait_for(Start&& start, Clock::time_point end,
                                    const std::function<void()>& interrupted) {
  struct Waiting {
    std::mutex mutex;
    std::condition_variable answered;
    bool over = false;
    std::pair<Status, T> answer{};
  };
  const auto waiting = std::make_shared<Waiting>();
  start([waiting](Status status, T value) {
    const std::lock_guard lock(waiting->mutex);
    waiting->answer = {status, std::move(value)};
    waiting->over = true;
    waiting->answered.notify_all();
  });
  std::unique_lock lock(waiting->mutex);
  while (!waiting->over) {
    const Clock::time_point now = Clock::now();
    if (now >= end)
      throw TransferFailure(Status::kTimeout, "peer " + address + " did not answer in time", {},
                            address);
    const auto nap = std::min(end, now + std::chrono::milliseconds(100));
    waiting->answered.wait_until(lock, nap, [&] { return waiting->over; });
    lock.unlock();
    interrupted();
    lock.lock();
  }
  return std::move(waiting->answer);
}

Peer::Answer Peer::ask_and_wait(net::Kind kind, Bytes question, Clock::time_point end,
                                const std::function<void()>& interrupted) {
  auto [status, bytes] = wait_for<Bytes>(
      [&](Then then) { ask(kind, std::move(question), std::move(then)); }, end, interrupted);
  return {status, std::move(bytes)};
}

std::shared_ptr<const MappedSegment> Peer::map(const RemoteSegment& segment, double timeout_s,
                                               const std::function<void()>& interrupted) {
  const Clock::time_point end = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                                   std::chrono::duration<double>(timeout_s));
  Status why = lost_.load() != Status::kOk ? lost_.load() : Status::kTransportUnavailable;
  for (const auto& path : dispatch_.paths()) {
    auto [status, mapped] = wait_for<std::shared_ptr<const MappedSegment>>(
        [&](Path::Mapped then) { path->map(segment, std::move(then)); }, end, interrupted);
    if (mapped != nullptr) return mapped;
    if (status != Status::kTransportUnavailable) why = status;
  }
  std::string text = "segment '" + segment.name + "' of peer " + address + " cannot be mapped";
  text += why == Status::kTransportUnavailable
              ? ": it is no memory that an engine of this host allocated, or has in a shared file"
              : "";
  for (const std::string& problem : problems()) text += "; " + problem;
  throw TransferFailure(why, text, segment.name, address);
}

std::shared_ptr<RemoteSegment> Peer::segment(const std::string& name, double timeout_s,
                                             const std::function<void()>& interrupted) {
  if (name.empty() || name.size() > net::kMaxNameBytes)
    throw ArgumentError("name: must have 1.." + std::to_string(net::kMaxNameBytes) +
                        " bytes, got " + std::to_string(name.size()));
  {
    const std::lock_guard lock(mutex_);
    const auto known = segments_.find(name);
    if (known != segments_.end())
      if (auto segment = known->second.lock(); segment != nullptr && !segment->closed && alive())
        return segment;
  }
  const Clock::time_point end = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                                   std::chrono::duration<double>(timeout_s));
  const auto bytes = std::as_bytes(std::span(name));
  Answer answer;
  for (;;) {
    answer = ask_and_wait(net::Kind::kLookup, {bytes.begin(), bytes.end()}, end, interrupted);
    if (answer.status != Status::kPeerUnreachable || !alive() || Clock::now() >= end) break;
    // The lane it was asked over is gone; others are left, or are being made.
    std::this_thread::sleep_for(kAskAgainAfter);
  }
  if (answer.status == Status::kSegmentNotFound) {
    const std::string names(reinterpret_cast<const char*>(answer.bytes.data()),
                            answer.bytes.size());
    throw TransferFailure(answer.status,
                          "peer " + address + " has no segment '" + name + "'; it has " +
                              (names.empty() ? "none" : names),
                          name, address);
  }
  if (answer.status != Status::kOk)
    throw TransferFailure(answer.status, "the connection to peer " + address + " is closed", {},
                          address);
  auto segment = std::make_shared<RemoteSegment>();
  segment->peer = shared_from_this();
  segment->name = name;
  if (!net::decode(answer.bytes, segment->descriptor))
    throw TransferFailure(Status::kProtocol, "peer " + address + " sent a damaged description",
                          name, address);
  const std::lock_guard lock(mutex_);
  segments_[name] = segment;
  return segment;
}

}  // namespace inlay::transfer
