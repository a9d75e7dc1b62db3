#include "local.h"

#include "copy_path.h"

namespace inlay::transfer {

namespace {

bool overlap(const std::byte* a, const std::byte* b, uint64_t length) {
  return a < b + length && b < a + length;
}

class OwnMemory final : public RemoteMemory {
 public:
  explicit OwnMemory(std::shared_ptr<Door> door) : door_(std::move(door)) {}

  Status copy(const Slice& slice, bool streaming, uint32_t& sum) const override {
    const net::SegmentDescriptor& named = slice.request->remote->descriptor;
    const auto use = door_->use(named.slot, named.epoch);
    if (use == nullptr) return door_->is_open() ? Status::kSegmentClosed : Status::kPeerDied;
    const Segment& segment = use->segment();
    const bool read = slice.request->op == Op::kRead;
    if (segment.access < (read ? Access::kRead : Access::kWrite)) return Status::kSegmentAccess;
    const GuardedPiece piece(segment);
    Status status = Status::kOk;
    slice.each([&](const Range& range) {
      if (!segment.contains(range.remote, range.length)) {
        status = Status::kSegmentRange;
        return;
      }
      if (!read && !segment.allows(range.remote, range.length, slice.request->grant)) {
        status = Status::kGrant;
        return;
      }
      std::byte* here = slice.request->local->base + range.local;
      std::byte* there = segment.base + range.remote;
      std::byte* to = read ? here : there;
      const std::byte* from = read ? there : here;
      if (overlap(to, from, range.length))
        status = Status::kSegmentOverlap;
      else
        copy_range(*slice.request, to, from, range.length, streaming, sum);
    });
    return status;
  }

 private:
  const std::shared_ptr<Door> door_;
};

class LocalPath final : public CopyPath {
 public:
  LocalPath(const std::shared_ptr<PathOwner>& peer, net::CopyCrew& crew, std::shared_ptr<Door> door)
      : CopyPath(peer, crew), door_(std::move(door)), memory_(std::make_shared<OwnMemory>(door_)) {}

  std::string_view transport() const override { return "local"; }
  std::string name() const override { return "local, this process"; }
  std::optional<Reach> reach(const Segment& local, const RemoteSegment& remote, Op) const override {
    constexpr Reach kCopies{20e9, 0.5e-6};
    const bool here =
        local.location.place == net::Place::kHost && remote.descriptor.key("local") != nullptr;
    return here ? std::optional(kCopies) : std::nullopt;
  }
  PostResult post(Attempt& attempt) override { return start(attempt, memory_); }
  void map(const RemoteSegment& remote, Mapped then) override;

 private:
  const std::shared_ptr<Door> door_;
  const std::shared_ptr<const RemoteMemory> memory_;
};

// A mapping of its own, so that the segment's owner need not wait for who reads.
void LocalPath::map(const RemoteSegment& remote, Mapped then) {
  const uint32_t slot = remote.descriptor.slot;
  const uint32_t epoch = remote.descriptor.epoch;
  const auto use = door_->use(slot, epoch);
  if (use == nullptr) return then(Status::kSegmentClosed, nullptr);
  const Segment& segment = use->segment();
  if (segment.access == Access::kNone || segment.memory == nullptr)
    return then(Status::kTransportUnavailable, nullptr);
  Status status = Status::kOk;
  auto mapped = MappedSegment::map(
      *segment.memory, segment.size,
      [door = door_, slot, epoch] { return door->use(slot, epoch) != nullptr; }, status);
  then(status, std::move(mapped));
}

}  // namespace

LocalTransport::LocalTransport(Site site)
    : site_(std::move(site)), door_(open_door(site_.engine, site_.segments)) {}

LocalTransport::~LocalTransport() { close(); }

Bytes LocalTransport::attach(Segment& segment) {
  const bool reachable =
      segment.access != Access::kNone && segment.location.place == net::Place::kHost;
  return Bytes(reachable ? 1 : 0);
}

Bytes LocalTransport::offer() { return door_mark(); }

Transport::Connected LocalTransport::connect(const std::shared_ptr<PathOwner>& peer,
                                             std::span<const std::byte> bytes, Clock::time_point) {
  const char* problem = nullptr;
  auto door = find_door(peer->engine_id(), bytes, problem);
  if (door == nullptr) return {{}, problem};
  return {{std::make_shared<LocalPath>(peer, crew_, std::move(door))}, {}};
}

void LocalTransport::close() {
  close_door(site_.engine);
  crew_.close();
}

}  // namespace inlay::transfer
