#include "cuda_path.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <tuple>
#include <utility>

namespace inlay::transfer {

using net::Place;
using net::cuda::Device;

namespace {

// First guesses; what is measured replaces them. What matters is that staging is slower.
constexpr Reach kHostAndDevice{20e9, 30e-6};
constexpr Reach kBetweenDevices{100e9, 30e-6};

// Null for other memory.
CudaMemory* cuda_memory(const Segment& segment) {
  return segment.location.place == Place::kDevice ? dynamic_cast<CudaMemory*>(segment.far)
                                                  : nullptr;
}

std::byte* pointer(net::cuda::Address address) { return reinterpret_cast<std::byte*>(address); }

}  // namespace

std::optional<Reach> CudaOwnPath::reach(const Segment& local, const RemoteSegment& remote,
                                        Op) const {
  const Place here = local.location.place;
  const Place there = remote.descriptor.location.place;
  if (here == Place::kDevice && there == Place::kDevice) return kBetweenDevices;
  const bool both = (here == Place::kDevice && there == Place::kHost) ||
                    (here == Place::kHost && there == Place::kDevice);
  return both ? std::optional(kHostAndDevice) : std::nullopt;
}

FarPath::Prepared CudaOwnPath::prepare(const Slice& slice) {
  const Request& request = *slice.request;
  const net::SegmentDescriptor& named = request.remote->descriptor;
  auto use = door_->use(named.slot, named.epoch);
  if (use == nullptr) return {door_->is_open() ? Status::kSegmentClosed : Status::kPeerDied};
  const Segment& there = use->segment();
  const bool write = request.op == Op::kWrite;
  const Access needed = write ? Access::kWrite : Access::kRead;
  if (is_own_ ? write && !there.writable : there.access < needed) return {Status::kSegmentAccess};
  if (!is_inside(slice, there.size)) return {Status::kSegmentRange};
  CudaMemory* const far = cuda_memory(there);
  CudaMemory* const near = cuda_memory(*request.local);  // which its batch keeps
  Prepared prepared;
  prepared.use = std::move(use);
  if (far == nullptr) {
    if (near == nullptr || there.base == nullptr) return {Status::kSegmentAccess};
    prepared.far_is_local = true;
    prepared.near = there.base;
    prepared.move = [near, write](FarMove::Done done) {
      return near->move(!write, std::move(done));
    };
  } else if (near == nullptr) {
    prepared.near = request.local->base;
    prepared.move = [far, write](FarMove::Done done) { return far->move(write, std::move(done)); };
  } else {
    // Two engines may have registered the same memory.
    bool apart = true;
    slice.each([&](const Range& range) {
      const net::cuda::Address a = far->address + range.remote;
      const net::cuda::Address b = near->address + range.local;
      apart &= a + range.length <= b || b + range.length <= a;
    });
    if (!apart) return {Status::kSegmentOverlap};
    far->device().approach(near->device());
    prepared.near = pointer(near->address);
    prepared.move = [far, write](FarMove::Done done) {
      return far->move_between(write, std::move(done));
    };
  }
  return prepared;
}

CudaPeerPath::Opened::~Opened() {
  memory = nullptr;  // before the owner hears that it is
  if (const auto held = path.lock()) held->send(ipc::Kind::kRelease, name);
}

CudaPeerPath::CudaPeerPath(std::weak_ptr<PathOwner> owner, net::Loop& loop,
                           std::shared_ptr<const CudaDevices> devices, net::Descriptor socket,
                           int32_t pid)
    : FarPath(std::move(owner)),
      loop_(loop),
      devices_(std::move(devices)),
      socket_(std::move(socket)),
      pid_(pid) {}

void CudaPeerPath::listen() {
  const auto self = std::static_pointer_cast<CudaPeerPath>(shared_from_this());
  const std::lock_guard lock(sending_);
  loop_id_ = loop_.add(socket_, EPOLLIN, self);
}

std::optional<Reach> CudaPeerPath::reach(const Segment& local, const RemoteSegment& remote,
                                         Op) const {
  const Place here = local.location.place;
  if (here == Place::kDisk || remote.descriptor.location.place != Place::kDevice ||
      remote.descriptor.key("cuda") == nullptr)
    return {};
  // A process that uses no device would have to start CUDA for it.
  if (here == Place::kHost && !devices_->any()) return {};
  if (any_unreachable_.load()) {
    const std::lock_guard lock(unreachable_mutex_);
    if (unreachable_.contains({remote.descriptor.slot, remote.descriptor.epoch})) return {};
  }
  return here == Place::kHost ? kHostAndDevice : kBetweenDevices;
}

FarPath::Prepared CudaPeerPath::prepare(const Slice& slice) {
  const Request& request = *slice.request;
  const net::SegmentDescriptor& named = request.remote->descriptor;
  const SegmentName name{named.slot, named.epoch};
  const auto [found, is_new] = known_.try_emplace(name);
  if (is_new) send(ipc::Kind::kOpen, name);
  const Known& known = found->second;
  if (known.problem != Status::kOk) return {known.problem};
  Prepared prepared;
  prepared.later = known.opened == nullptr;
  if (prepared.later) return prepared;
  const bool write = request.op == Op::kWrite;
  if (write && !known.opened->writable) return {Status::kSegmentAccess};
  if (!is_inside(slice, known.opened->size)) return {Status::kSegmentRange};
  const auto near = cuda_memory(*request.local);
  prepared.use = known.opened;
  prepared.near = near == nullptr ? request.local->base : pointer(near->address);
  prepared.move = [far = known.opened->memory.get(), write,
                   between = near != nullptr](FarMove::Done done) {
    return between ? far->move_between(write, std::move(done)) : far->move(write, std::move(done));
  };
  return prepared;
}

void CudaPeerPath::send(ipc::Kind kind, const SegmentName& segment) {
  ipc::SegmentMessage message{kind};
  std::tie(message.slot, message.epoch) = segment;
  const auto bytes = ipc::bytes_of(message);
  const std::lock_guard lock(sending_);
  const net::SideIo io = outbox_.send(socket_, {bytes.begin(), bytes.end()});
  // The loop sees a connection that is over, and ends what waits for its answers.
  if (io == net::SideIo::kOver) shutdown(socket_.get(), SHUT_RDWR);
  if (io == net::SideIo::kLater && loop_id_ != 0)
    loop_.change(loop_id_, socket_, EPOLLIN | EPOLLOUT);
}

bool CudaPeerPath::on_events(uint32_t events) {
  if (over_.load()) return false;
  if ((events & EPOLLOUT) != 0) {
    const std::lock_guard lock(sending_);
    if (loop_id_ != 0 && outbox_.flush(socket_) == net::SideIo::kDone)
      loop_.change(loop_id_, socket_, EPOLLIN);
  }
  bool worked = false;
  while (receive()) worked = true;
  if (over_.load()) end();
  return worked;
}

bool CudaPeerPath::receive() {
  switch (net::receive_side(socket_, message_)) {
    case net::SideIo::kDone:
      take(message_.bytes());
      return true;
    case net::SideIo::kLater:
      return false;
    case net::SideIo::kOver:
      over_.store(true);
      return false;
  }
  return false;
}

void CudaPeerPath::take(std::span<const std::byte> bytes) {
  const auto segment = ipc::read_as<ipc::SegmentMessage>(bytes);
  if (!segment) return;
  if (segment->kind == ipc::Kind::kClosed) take_closed({segment->slot, segment->epoch});
  if (segment->kind == ipc::Kind::kOpened)
    if (const auto opened = ipc::read_as<ipc::OpenedMessage>(bytes)) take_opened(*opened);
}

std::shared_ptr<CudaPeerPath::Opened> CudaPeerPath::map(const ipc::OpenedMessage& answer) {
  auto opened = std::make_shared<Opened>();
  opened->path = std::static_pointer_cast<CudaPeerPath>(shared_from_this());
  opened->name = {answer.segment.slot, answer.segment.epoch};
  opened->size = answer.size;
  opened->writable = answer.writable != 0;
  const auto device = devices_->pick(answer.device);
  std::string problem;
  const auto mapping = device == nullptr ? nullptr : device->open(answer.handle, problem);
  if (mapping == nullptr) return nullptr;  // whose end releases it at the owner
  opened->memory = std::make_shared<CudaMemory>(device, mapping->address() + answer.offset,
                                                answer.size, mapping);
  return opened;
}

void CudaPeerPath::take_opened(const ipc::OpenedMessage& answer) {
  const SegmentName name{answer.segment.slot, answer.segment.epoch};
  Status problem = answer.segment.status;
  {
    const std::lock_guard opening(opening_);
    {
      const std::lock_guard lock(mutex_);
      if (!known_.contains(name)) return;  // closed meanwhile, as the owner knows
    }
    std::shared_ptr<Opened> opened;
    if (problem == Status::kOk) opened = map(answer);
    if (problem == Status::kOk && opened == nullptr) {
      problem = Status::kTransportUnavailable;
      const std::lock_guard lock(unreachable_mutex_);
      unreachable_.insert(name);
      any_unreachable_.store(true);
    }
    const std::lock_guard lock(mutex_);
    known_[name] = {std::move(opened), problem};
  }
  resume();
  if (problem != Status::kOk) {
    const std::lock_guard lock(mutex_);
    known_.erase(name);
  }
  if (const auto owner = owner_.lock()) owner->fill();
}

void CudaPeerPath::take_closed(const SegmentName& name) {
  std::shared_ptr<Opened> opened;  // let go of without the lock
  {
    const std::lock_guard lock(mutex_);
    const auto found = known_.find(name);
    if (found == known_.end() || found->second.opened == nullptr) return;
    opened = std::move(found->second.opened);
    known_.erase(found);
    end_uses(opened.get());
  }
  opened = nullptr;
  if (const auto owner = owner_.lock()) owner->fill();
}

void CudaPeerPath::let_go_of_all() {
  std::map<SegmentName, Known> known;
  const std::lock_guard opening(opening_);
  {
    const std::lock_guard lock(mutex_);
    known.swap(known_);
  }
  known.clear();  // before another mapping could begin
}

void CudaPeerPath::close(Status why) {
  FarPath::close(why);
  let_go_of_all();
  send(ipc::Kind::kBye, {});
}

void CudaPeerPath::end() {
  {
    const std::lock_guard lock(sending_);
    if (loop_id_ == 0) return;
    loop_.remove(std::exchange(loop_id_, 0), socket_);
  }
  bool lost;
  {
    const std::lock_guard lock(mutex_);
    lost = closed_ == Status::kOk;
  }
  FarPath::close(Status::kPeerDied);
  let_go_of_all();
  if (!lost) return;
  if (const auto owner = owner_.lock()) owner->lost(*this, Status::kPeerDied);
}

}  // namespace inlay::transfer
