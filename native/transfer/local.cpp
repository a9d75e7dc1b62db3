#include "local.h"

#include <algorithm>
#include <map>

#include "../core/stream_copy.h"
#include "../net/process_memory.h"
#include "copy_path.h"

namespace inlay::transfer {

namespace {

using Door = LocalTransport::Door;

// The open engines of this process. An engine finds another by its number alone, since an address
// in an offer would be one that a peer made up.
class Doors {
 public:
  void add(const net::EngineId& engine, std::shared_ptr<Door> door) {
    const std::lock_guard lock(mutex_);
    doors_[engine] = std::move(door);
  }
  void remove(const net::EngineId& engine) {
    const std::lock_guard lock(mutex_);
    doors_.erase(engine);
  }
  std::shared_ptr<Door> find(const net::EngineId& engine) {
    const std::lock_guard lock(mutex_);
    const auto found = doors_.find(engine);
    return found == doors_.end() ? nullptr : found->second;
  }

 private:
  std::mutex mutex_;
  std::map<net::EngineId, std::shared_ptr<Door>> doors_;
};

// Never destroyed: at exit threads may still use it.
Doors& doors() {
  static auto* const all = new Doors();
  return *all;
}

bool overlap(const std::byte* a, const std::byte* b, uint64_t length) {
  return a < b + length && b < a + length;
}

class OwnMemory final : public RemoteMemory {
 public:
  explicit OwnMemory(std::shared_ptr<Door> door) : door_(std::move(door)) {}

  Status copy(const Slice& slice, bool streaming) const override {
    const net::SegmentDescriptor& named = slice.request->remote->descriptor;
    const auto use = door_->use(named.slot, named.epoch);
    if (use == nullptr) return door_->is_open() ? Status::kSegmentClosed : Status::kPeerDied;
    const Segment& segment = use->segment();
    const bool read = slice.request->op == Op::kRead;
    if (segment.access < (read ? Access::kRead : Access::kWrite)) return Status::kSegmentAccess;
    Status status = Status::kOk;
    slice.each([&](const Range& range) {
      if (!segment.contains(range.remote, range.length)) {
        status = Status::kSegmentRange;
        return;
      }
      std::byte* here = slice.request->local->base + range.local;
      std::byte* there = segment.base + range.remote;
      std::byte* to = read ? here : there;
      const std::byte* from = read ? there : here;
      if (overlap(to, from, range.length))
        status = Status::kSegmentOverlap;
      else
        copy_bytes(to, from, range.length, streaming);
    });
    return status;
  }

 private:
  const std::shared_ptr<Door> door_;
};

class LocalPath final : public CopyPath {
 public:
  LocalPath(const std::shared_ptr<PathOwner>& peer, net::CopyCrew& crew, std::shared_ptr<Door> door)
      : CopyPath(peer, crew), memory_(std::make_shared<OwnMemory>(std::move(door))) {}

  std::string_view transport() const override { return "local"; }
  std::string name() const override { return "local, this process"; }
  std::optional<Reach> reach(const Segment& local, const RemoteSegment& remote, Op) const override {
    constexpr Reach kCopies{20e9, 0.5e-6};
    const bool here =
        local.location.place == net::Place::kHost && remote.descriptor.key("local") != nullptr;
    return here ? std::optional(kCopies) : std::nullopt;
  }
  PostResult post(Attempt& attempt) override { return start(attempt, memory_); }

 private:
  const std::shared_ptr<const RemoteMemory> memory_;
};

}  // namespace

std::shared_ptr<SegmentUse> Door::use(uint32_t slot, uint32_t epoch) {
  const std::shared_lock lock(mutex);
  return segments == nullptr ? nullptr : segments->use(slot, epoch);
}

bool Door::is_open() {
  const std::shared_lock lock(mutex);
  return segments != nullptr;
}

LocalTransport::LocalTransport(Site site)
    : site_(std::move(site)), door_(std::make_shared<Door>()) {
  door_->segments = &site_.segments;
  doors().add(site_.engine, door_);
}

LocalTransport::~LocalTransport() { close(); }

Bytes LocalTransport::attach(Segment& segment) {
  const bool reachable =
      segment.access != Access::kNone && segment.location.place == net::Place::kHost;
  return Bytes(reachable ? 1 : 0);
}

// The process's mark: an engine of another process has another one, also when it is our child.
Bytes LocalTransport::offer() {
  const auto& mark = net::this_process_mark().value;
  return {mark.begin(), mark.end()};
}

Transport::Connected LocalTransport::connect(const std::shared_ptr<PathOwner>& peer,
                                             std::span<const std::byte> bytes, Clock::time_point) {
  if (!std::ranges::equal(bytes, net::this_process_mark().value))
    return {{}, "it is another process"};
  auto door = doors().find(peer->engine_id());
  if (door == nullptr) return {{}, "it is closed"};
  return {{std::make_shared<LocalPath>(peer, crew_, std::move(door))}, {}};
}

void LocalTransport::close() {
  doors().remove(site_.engine);
  {
    const std::lock_guard lock(door_->mutex);
    door_->segments = nullptr;
  }
  crew_.close();
}

}  // namespace inlay::transfer
