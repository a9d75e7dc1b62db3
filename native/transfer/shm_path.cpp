#include "shm_path.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>

namespace inlay::transfer::shm {

namespace {

// First guesses; what is measured replaces them.
constexpr Reach kMapped{20e9, 0.5e-6};
constexpr Reach kRead{9e9, 2e-6};
constexpr Reach kPulled{8e9, 10e-6};

std::optional<Key> key_of(const RemoteSegment& remote) {
  const std::vector<std::byte>* key = remote.descriptor.key(kName);
  return key == nullptr ? std::nullopt : read_as<Key>(*key);
}

}  // namespace

ShmPath::ShmPath(const std::shared_ptr<PathOwner>& owner, net::CopyCrew& crew, net::Loop& loop,
                 Link link, std::function<void()> broken)
    : CopyPath(owner, crew), loop_(loop), link_(std::move(link)), broken_(std::move(broken)) {
  // What memory holds when it is used for something else is not taken for a stamp.
  net::fill_random(std::as_writable_bytes(std::span(&last_stamp_, 1)));
}

void ShmPath::listen() {
  const auto self = std::static_pointer_cast<ShmPath>(shared_from_this());
  const std::lock_guard lock(mutex_);
  loop_id_ = loop_.add(link_.socket, EPOLLIN, self);
}

std::string ShmPath::name() const { return "shm process " + std::to_string(link_.pid); }

std::optional<Reach> ShmPath::reach(const Segment& local, const RemoteSegment& remote,
                                    Op op) const {
  if (local.location.place != net::Place::kHost) return {};
  const auto key = key_of(remote);
  if (!key) return {};
  if (key->shared != 0 && (op == Op::kRead || !remote.descriptor.guarded)) return kMapped;
  if (op == Op::kRead) return link_.can_read ? std::optional(kRead) : std::nullopt;
  return link_.can_pull ? std::optional(kPulled) : std::nullopt;
}

PostResult ShmPath::post(Attempt& attempt) {
  const Request& request = *attempt.slice.request;
  const net::SegmentDescriptor& remote = request.remote->descriptor;
  std::shared_ptr<const RemoteMemory> memory;
  {
    const std::lock_guard lock(mutex_);
    if (closed_ != Status::kOk) return {Posted::kRefused, closed_};
    Known& known = known_[remote.slot];
    if (known.epoch != remote.epoch) {
      if (!link_.page->is_open(remote.slot, remote.epoch))
        return {Posted::kRefused, Status::kSegmentClosed};
      forget(known, Status::kSegmentClosed);
      ask_for(remote.slot, *request.remote);
    }
    if (known.problem != Status::kOk) return {Posted::kRefused, known.problem};
    const bool pulled = remote.guarded || key_of(*request.remote)->shared == 0;
    if (request.op == Op::kWrite && pulled) return post_pull(attempt);
    if (known.memory == nullptr) {
      known.parked.push_back(&attempt);
      return {Posted::kTaken};
    }
    memory = known.memory;
  }
  return start(attempt, std::move(memory));
}

void ShmPath::ask_for(uint32_t slot, const RemoteSegment& remote) {
  Known& known = known_[slot];
  const net::SegmentDescriptor& descriptor = remote.descriptor;
  const auto key = key_of(remote);
  const SegmentName name{slot, descriptor.epoch};
  known = {};
  known.epoch = descriptor.epoch;
  known.size = descriptor.size;
  known.writable = descriptor.writable && !descriptor.guarded;
  if (!key) {
    known.problem = Status::kTransportUnavailable;
  } else if (key->shared == 0) {
    known.memory = read_memory(link_.memory, key->base, name, link_.page);
  } else {
    send(bytes_of(SegmentMessage{Kind::kMap, Status::kOk, 0, slot, descriptor.epoch}));
  }
}

void ShmPath::forget(Known& known, Status why) {
  for (Attempt* attempt : std::exchange(known.parked, {})) copied(*attempt, why);
  known = {};
}

PostResult ShmPath::post_pull(Attempt& attempt) {
  const Request& request = *attempt.slice.request;
  const bool guarded = request.remote->descriptor.guarded;
  PullMessage head;
  if (guarded) head.kind = Kind::kPullGranted;
  head.id = ++last_pull_;
  head.slot = request.remote->descriptor.slot;
  head.epoch = request.remote->descriptor.epoch;
  std::vector<PullRange> ranges;
  attempt.slice.each([&](const Range& range) {
    const auto source = reinterpret_cast<uint64_t>(request.local->base + range.local);
    ranges.push_back({range.remote, source, range.length});
  });
  auto stamp = std::make_unique<Stamp>(++last_stamp_);
  head.stamp = stamp->name();
  head.num_ranges = static_cast<uint16_t>(ranges.size());
  const auto head_bytes = bytes_of(head);
  Bytes message(head_bytes.begin(), head_bytes.end());
  const auto grant = bytes_of(request.grant);
  if (guarded) message.insert(message.end(), grant.begin(), grant.end());
  const auto range_bytes = std::as_bytes(std::span(ranges));
  message.insert(message.end(), range_bytes.begin(), range_bytes.end());
  pulled_.store(true);
  pulls_.emplace(head.id, Pull{&attempt, std::move(stamp)});
  send(message);
  return {Posted::kTaken};
}

void ShmPath::send(std::span<const std::byte> message) {
  const net::SideIo io = outbox_.send(link_.socket, {message.begin(), message.end()});
  // The loop sees a connection that is over, and ends what waits for its answers.
  if (io == net::SideIo::kOver) shutdown(link_.socket.get(), SHUT_RDWR);
  if (io == net::SideIo::kLater && !std::exchange(sending_, true))
    loop_.change(loop_id_, link_.socket, EPOLLIN | EPOLLOUT);
}

bool ShmPath::pump() {
  if (copy_piece()) return true;
  {
    const std::lock_guard lock(mutex_);
    if (pulls_.empty()) return false;
  }
  return receive();
}

pollfd ShmPath::sleep_on() {
  const std::lock_guard lock(mutex_);
  return {pulls_.empty() ? -1 : link_.socket.get(), POLLIN, 0};
}

void ShmPath::end_parked(const void* owner, Status why) {
  for (auto& [slot, known] : known_) {
    std::vector<Attempt*> ended;
    std::erase_if(known.parked, [&](Attempt* attempt) {
      if (owner != nullptr && attempt->owner != owner) return false;
      ended.push_back(attempt);
      return true;
    });
    for (Attempt* attempt : ended) copied(*attempt, why);
  }
}

void ShmPath::revoke(const void* owner) {
  {
    const std::lock_guard lock(mutex_);
    end_parked(owner, Status::kCancelled);
    for (const auto& [id, pull] : pulls_)
      if (pull.attempt->owner == owner) {
        PullMessage stop;
        stop.kind = Kind::kStop;
        stop.id = id;
        send(bytes_of(stop));
      }
  }
  CopyPath::revoke(owner);
}

void ShmPath::abandon(const void* owner) {
  const std::lock_guard lock(mutex_);
  for (auto& [id, pull] : pulls_)
    if (pull.attempt->owner == owner) give_up(pull, Status::kCancelled);
}

// What the peer reads from now on does not land, but what it has read may.
void ShmPath::give_up(Pull& pull, Status why) {
  if (std::exchange(pull.given_up, true)) return;
  pull.stamp->take_back();
  if (const auto peer = owner_.lock()) peer->completed(*pull.attempt, why, false);
}

void ShmPath::close(Status why) {
  CopyPath::close(why);
  std::vector<Mapping> mappings;
  {
    const std::lock_guard lock(mutex_);
    end_parked(nullptr, why);
    for (auto& [id, pull] : pulls_) give_up(pull, why);
    known_.clear();
    mappings.swap(mappings_);
    // The peer ends its pulls and hangs up; end() is told of that.
    shutdown(link_.socket.get(), SHUT_WR);
  }
  for (const Mapping& mapping : mappings) mapping.then(why, nullptr);
}

void ShmPath::map(const RemoteSegment& remote, Mapped then) {
  const auto key = key_of(remote);
  Status why = key && key->shared != 0 ? Status::kOk : Status::kTransportUnavailable;
  if (why == Status::kOk) {
    const net::SegmentDescriptor& descriptor = remote.descriptor;
    const std::lock_guard lock(mutex_);
    why = over_.load() ? Status::kPeerDied : closed_;
    if (why == Status::kOk) {
      mappings_.push_back({{descriptor.slot, descriptor.epoch}, descriptor.size, std::move(then)});
      send(bytes_of(SegmentMessage{Kind::kMap, Status::kOk, 0, descriptor.slot, descriptor.epoch}));
      return;
    }
  }
  then(why, nullptr);
}

std::vector<ShmPath::Mapping> ShmPath::take_mappings(SegmentName name) {
  std::vector<Mapping> taken;
  std::erase_if(mappings_, [&](Mapping& mapping) {
    if (mapping.name.slot != name.slot || mapping.name.epoch != name.epoch) return false;
    taken.push_back(std::move(mapping));
    return true;
  });
  return taken;
}

MappedSegment::IsOpen ShmPath::is_open(SegmentName name) {
  return [weak = std::weak_ptr(std::static_pointer_cast<ShmPath>(shared_from_this())), name] {
    const auto path = weak.lock();
    return path != nullptr && !path->over_.load() &&
           path->link_.page->is_open(name.slot, name.epoch);
  };
}

Bytes ShmPath::fence() const {
  if (!pulled_.load()) return {};
  const auto bytes = bytes_of(link_.connection);
  return {bytes.begin(), bytes.end()};
}

bool ShmPath::on_events(uint32_t events) {
  if (over_.load()) return false;
  if ((events & EPOLLOUT) != 0) {
    const std::lock_guard lock(mutex_);
    if (outbox_.flush(link_.socket) == net::SideIo::kDone && std::exchange(sending_, false))
      loop_.change(loop_id_, link_.socket, EPOLLIN);
  }
  bool worked = false;
  while (receive()) worked = true;
  if (worked)
    if (const auto owner = owner_.lock()) owner->fill();
  if (over_.load()) end();
  return worked;
}

bool ShmPath::receive() {
  const std::unique_lock receiving(receiving_, std::try_to_lock);
  if (!receiving || over_.load()) return false;
  switch (net::receive_side(link_.socket, message_)) {
    case net::SideIo::kDone:
      take(message_);
      return true;
    case net::SideIo::kLater:
      return false;
    case net::SideIo::kOver:
      over_.store(true);
      // By the loop, which also gets here when a waiter saw it first.
      loop_.post([self = std::static_pointer_cast<ShmPath>(shared_from_this())] { self->end(); });
      return false;
  }
  return false;
}

void ShmPath::take(net::SideMessage& message) {
  const auto segment = read_as<SegmentMessage>(message.bytes());
  if (!segment) return;
  switch (segment->kind) {
    case Kind::kMapped:
      take_memory(*segment, message.descriptor);
      return;
    case Kind::kPulled:
      if (const auto pulled = read_as<PullMessage>(message.bytes())) take_pulled(*pulled);
      return;
    case Kind::kClosed: {
      const std::lock_guard lock(mutex_);
      const auto found = known_.find(segment->slot);
      if (found == known_.end() || found->second.epoch != segment->epoch) return;
      forget(found->second, Status::kSegmentClosed);
      known_.erase(found);
      return;
    }
    default:
      return;  // of a later version
  }
}

void ShmPath::take_memory(const SegmentMessage& answer, const net::Descriptor& descriptor) {
  const SegmentName name{answer.slot, answer.epoch};
  std::vector<Mapping> mappings;
  {
    const std::lock_guard lock(mutex_);
    mappings = take_mappings(name);
    if (const auto found = known_.find(name.slot);
        found != known_.end() && found->second.epoch == name.epoch)
      take_memory(found->second, answer, descriptor);
  }
  kick();
  for (const Mapping& mapping : mappings) {
    Status status = answer.status;
    std::shared_ptr<const MappedSegment> mapped;
    if (status == Status::kOk)
      mapped = MappedSegment::map(descriptor, mapping.size, is_open(name), status);
    mapping.then(status, std::move(mapped));
  }
}

void ShmPath::take_memory(Known& known, const SegmentMessage& answer,
                          const net::Descriptor& descriptor) {
  if (known.memory != nullptr || known.problem != Status::kOk) return;  // of another question
  Status status = answer.status;
  if (status == Status::kOk)
    known.memory = map_memory(descriptor, known.size, known.writable, {answer.slot, answer.epoch},
                              link_.page, status);
  known.problem = status;
  for (Attempt* attempt : std::exchange(known.parked, {}))
    if (known.memory != nullptr)
      enqueue(*attempt, known.memory);
    else
      copied(*attempt, status);
}

void ShmPath::take_pulled(const PullMessage& answer) {
  const std::lock_guard lock(mutex_);
  const auto found = pulls_.find(answer.id);
  if (found == pulls_.end()) return;
  const Pull pull = std::move(found->second);
  pulls_.erase(found);
  const auto owner = owner_.lock();
  if (owner == nullptr) return;
  if (pull.given_up)
    owner->settled(*pull.attempt);
  else
    owner->completed(*pull.attempt, answer.status, true);
}

// The peer hung up, which it does when nothing of it touches our memory, or its own for us, any
// more; or the kernel did, after it took the process's memory away.
void ShmPath::end() {
  {
    const std::lock_guard lock(mutex_);
    if (loop_id_ == 0) return;
    loop_.remove(std::exchange(loop_id_, 0), link_.socket);
  }
  bool lost;
  {
    const std::lock_guard lock(mutex_);
    lost = closed_ == Status::kOk;
  }
  CopyPath::close(Status::kPeerDied);
  const auto owner = owner_.lock();
  std::vector<Mapping> mappings;
  {
    const std::lock_guard lock(mutex_);
    mappings.swap(mappings_);
    end_parked(nullptr, Status::kPeerDied);
    for (const auto& [id, pull] : std::exchange(pulls_, {})) {
      pull.stamp->take_back();
      if (owner == nullptr) continue;
      if (pull.given_up)
        owner->settled(*pull.attempt);
      else
        owner->completed(*pull.attempt, Status::kPeerDied, true);
    }
    known_.clear();
  }
  for (const Mapping& mapping : mappings) mapping.then(Status::kPeerDied, nullptr);
  if (!lost || owner == nullptr) return;
  owner->lost(*this, Status::kPeerDied);
  broken_();
}

}  // namespace inlay::transfer::shm
