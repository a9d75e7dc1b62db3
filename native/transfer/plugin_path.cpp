#include "plugin_path.h"

#include <fcntl.h>
#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "../core/errors.h"

namespace inlay::transfer {

namespace {

// The path whose library this thread is in.
thread_local const PluginPath* inside = nullptr;

// What is not known here, and success, which is none, is the path's fault.
Status failure_of(inlay_status code) {
  const auto status = static_cast<Status>(code);
  const bool known = code != INLAY_OK && code <= UINT16_MAX && python_class(status) != nullptr;
  return known ? status : Status::kProtocol;
}

inlay_remote_segment told_of(const RemoteSegment& remote, const Bytes& key) {
  const net::SegmentDescriptor& descriptor = remote.descriptor;
  return {sizeof(inlay_remote_segment),
          descriptor.size,
          descriptor.slot,
          descriptor.epoch,
          descriptor.writable && !descriptor.guarded ? 1 : 0,
          key.data(),
          key.size()};
}

int told_of(Op op) { return op == Op::kRead ? INLAY_READ : INLAY_WRITE; }

}  // namespace

inlay_local told_of(const Segment& segment) {
  return {sizeof(inlay_local),
          segment.base,
          segment.size,
          segment.slot,
          segment.epoch,
          static_cast<int32_t>(segment.unguarded()),
          segment.writable ? 1 : 0};
}

// One call into the library at a time. Those who pump give way to all others, whom they would keep
// out by coming back at once.
class PluginPath::Call {
 public:
  explicit Call(PluginPath& path) : Call(path, std::defer_lock) {
    ++path.calling_;
    lock_.lock();
    --path.calling_;
    inside = &path;
  }
  Call(PluginPath& path, std::try_to_lock_t) : Call(path, std::defer_lock) {
    if (path.calling_.load() == 0 && lock_.try_lock()) inside = &path;
  }
  ~Call() {
    if (lock_) inside = nullptr;
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
  bool entered() const { return lock_.owns_lock(); }

 private:
  Call(PluginPath& path, std::defer_lock_t later)
      : owner_(path.owner_.lock()), lock_(path.calls_, later) {}

  // Let go of without the lock: it closes this path when nobody else holds it.
  const std::shared_ptr<PathOwner> owner_;
  std::unique_lock<std::mutex> lock_;
};

// The library's descriptor in the engine's loop, which pumps when nobody drives. A duplicate, so
// that its number is not given to another file under a sleeper.
class PluginPath::Watch final : public net::Handler {
 public:
  Watch(std::weak_ptr<PluginPath> path, int fd)
      : descriptor(fcntl(fd, F_DUPFD_CLOEXEC, 0)), path_(std::move(path)) {
    if (!descriptor.valid())
      throw ResourceError("its descriptor cannot be watched: " +
                          std::generic_category().message(errno));
  }
  bool on_events(uint32_t) override {
    const auto path = path_.lock();
    if (path == nullptr) return false;
    const bool moved = path->pump();
    if (const auto owner = path->owner_.lock()) owner->fill();
    return moved;
  }

  const net::Descriptor descriptor;
  net::Loop::Id id = 0;  // guarded by driving_; 0: not watched any more

 private:
  const std::weak_ptr<PluginPath> path_;
};

void PluginPath::open(const inlay_new_path& made) {
  self_ = made.self;
  name_.assign(made.name, strnlen(made.name, sizeof(made.name)));
  if (name_.empty()) name_ = transport_;
  const auto fence = std::as_bytes(std::span(made.fence));
  fence_.assign(fence.begin(), fence.begin() + std::min(made.fence_bytes, sizeof(made.fence)));
  if (made.fd >= 0 && ops_->path_pump != nullptr) {
    watch_ = std::make_shared<Watch>(weak_from_this(), made.fd);
    const std::lock_guard lock(driving_);
    watch_->id = loop_.add(watch_->descriptor, EPOLLIN, watch_);
  }
  const std::lock_guard call(calls_);
  {
    const std::lock_guard lock(mutex_);
    closed_ = Status::kOk;
    if (lost_ != Status::kOk) end_later(lost_);
  }
  // Not with the other held, since reach() comes from below it.
  const std::lock_guard living(living_);
  over_ = false;
}

std::optional<Reach> PluginPath::reach(const Segment& local, const RemoteSegment& remote,
                                       Op op) const {
  const Bytes* key = remote.descriptor.key(transport_);
  if (key == nullptr || local.location.place != net::Place::kHost) return {};
  // Its frames carry no grants.
  if (op == Op::kWrite && remote.descriptor.guarded) return {};
  const inlay_local here = told_of(local);
  const inlay_remote_segment there = told_of(remote, *key);
  inlay_reach reach{};
  const std::shared_lock living(living_);
  if (over_ || ops_->path_reach(self_, &here, &there, told_of(op), &reach) == 0) return {};
  if (!(reach.bandwidth > 0 && reach.base_s >= 0)) return {};
  return Reach{reach.bandwidth, reach.base_s};
}

PostResult PluginPath::post(Attempt& attempt) {
  const Request& request = *attempt.slice.request;
  const Bytes* key = request.remote->descriptor.key(transport_);
  if (key == nullptr) return {Posted::kRefused, Status::kTransportUnavailable};
  const Call call(*this);
  uint64_t id;
  {
    const std::lock_guard lock(mutex_);
    if (closed_ != Status::kOk) return {Posted::kRefused, closed_};
    id = ++last_id_;
    taken_.emplace(id, &attempt);
  }
  if (request.op == Op::kWrite) wrote_.store(true);
  pieces_.clear();
  attempt.slice.each([&](const Range& range) {
    pieces_.push_back({request.local->base + range.local, range.remote, range.length});
  });
  const inlay_local here = told_of(*request.local);
  const inlay_remote_segment there = told_of(*request.remote, *key);
  const inlay_attempt told{sizeof(inlay_attempt),
                           id,
                           told_of(request.op),
                           attempt.slice.bytes,
                           &here,
                           &there,
                           pieces_.data(),
                           pieces_.size()};
  const int32_t answer = ops_->path_post(self_, &told);
  if (answer == 0) return {Posted::kTaken};
  const std::lock_guard lock(mutex_);
  if (taken_.erase(id) == 0) return {Posted::kTaken};  // its end was told, too
  if (answer > 0) return {Posted::kDone};
  return {Posted::kRefused, failure_of(-static_cast<inlay_status>(answer))};
}

void PluginPath::kick() {
  if (ops_->path_kick == nullptr) return;
  const Call call(*this);
  if (!over_) ops_->path_kick(self_);
}

bool PluginPath::pump() {
  if (watch_ == nullptr) return false;
  const Call call(*this, std::try_to_lock);
  return call.entered() && !over_ && ops_->path_pump(self_) != 0;
}

bool PluginPath::try_drive(const net::WakeUp&) {
  const std::lock_guard lock(driving_);
  if (drivers_++ == 0 && watch_ != nullptr && watch_->id != 0)
    loop_.change(watch_->id, watch_->descriptor, 0);
  return true;
}

void PluginPath::stop_driving(const net::WakeUp&) {
  const std::lock_guard lock(driving_);
  if (--drivers_ == 0 && watch_ != nullptr && watch_->id != 0)
    loop_.change(watch_->id, watch_->descriptor, EPOLLIN);
}

pollfd PluginPath::sleep_on() {
  return {watch_ == nullptr ? -1 : watch_->descriptor.get(), POLLIN, 0};
}

void PluginPath::stop(const void* owner, bool at_once) {
  const Call call(*this);
  if (over_) return;
  std::vector<std::pair<uint64_t, bool>> stopped;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [id, attempt] : taken_) {
      const bool write = attempt->slice.request->op == Op::kWrite;
      if (attempt->owner == owner && (write || !at_once)) stopped.emplace_back(id, write);
    }
  }
  for (const auto& [id, write] : stopped) {
    const bool lands = ops_->path_stop(self_, id, at_once ? 1 : 0) != 0 && write;
    if (lands && !at_once) continue;
    const std::lock_guard lock(mutex_);
    const auto found = taken_.find(id);
    if (found != taken_.end()) take_out(found, Status::kCancelled, !lands);
  }
}

void PluginPath::take_out(Book::iterator found, Status status, bool settled) {
  const auto [id, attempt] = *found;
  taken_.erase(found);
  if (!settled) doubtful_.emplace(id, attempt);
  if (const auto owner = owner_.lock()) owner->completed(*attempt, status, settled);
}

void PluginPath::ended(uint64_t id, inlay_status code, bool settled) {
  auto owner = owner_.lock();
  {
    const std::lock_guard lock(mutex_);
    const auto found = taken_.find(id);
    if (found != taken_.end()) {
      const bool write = found->second->slice.request->op == Op::kWrite;
      const Status status = code == INLAY_OK ? Status::kOk : failure_of(code);
      take_out(found, status, settled || !write || status == Status::kOk);
    } else if (settled) {
      end_doubt(id, owner.get());
    }
  }
  fill(std::move(owner));
}

void PluginPath::settled(uint64_t id) {
  auto owner = owner_.lock();
  {
    const std::lock_guard lock(mutex_);
    end_doubt(id, owner.get());
  }
  fill(std::move(owner));
}

void PluginPath::end_doubt(uint64_t id, PathOwner* owner) {
  const auto found = doubtful_.find(id);
  if (found == doubtful_.end()) return;
  Attempt& attempt = *found->second;
  doubtful_.erase(found);
  if (owner != nullptr) owner->settled(attempt);
}

void PluginPath::lost(inlay_status code) {
  const std::lock_guard lock(mutex_);
  if (lost_ != Status::kOk) return;
  lost_ = failure_of(code);
  end_later(lost_);
}

// By the loop: it may be told inside a call, or with a lock of the library held.
void PluginPath::end_later(Status why) {
  loop_.post([weak = weak_from_this(), why] {
    const auto path = weak.lock();
    if (path == nullptr || !path->end(why)) return;
    const auto owner = path->owner_.lock();
    if (owner == nullptr) return;
    owner->lost(*path, why);
    path->tell_lost_();
  });
}

bool PluginPath::end(Status why) {
  const Call call(*this);
  {
    const std::lock_guard living(living_);
    if (std::exchange(over_, true)) return false;
  }
  {
    const std::lock_guard lock(driving_);
    if (watch_ != nullptr) loop_.remove(std::exchange(watch_->id, 0), watch_->descriptor);
  }
  {
    const std::lock_guard lock(mutex_);
    closed_ = why;
  }
  ops_->path_close(self_);
  const std::lock_guard lock(mutex_);
  const bool lands = !fence_.empty() && why != Status::kPeerDied;
  while (!taken_.empty()) {
    const bool write = taken_.begin()->second->slice.request->op == Op::kWrite;
    take_out(taken_.begin(), why, !lands || !write);
  }
  // The rest is for the fence to settle.
  const Book doubtful = std::exchange(doubtful_, {});
  if (lands) return true;
  if (const auto owner = owner_.lock())
    for (const auto& [id, attempt] : doubtful) owner->settled(*attempt);
  return true;
}

// Inside calls somebody fills anyway. Others hold locks of the library, which post() would need,
// and which path_close() would, if this were the last who holds the owner.
void PluginPath::fill(std::shared_ptr<PathOwner> owner) {
  if (inside == this || owner == nullptr) return;
  loop_.post([owner = std::move(owner)] { owner->fill(); });
}

}  // namespace inlay::transfer
