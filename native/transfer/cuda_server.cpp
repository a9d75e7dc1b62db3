#include "cuda_server.h"

#include <poll.h>
#include <sys/epoll.h>

#include <algorithm>

namespace inlay::transfer {

namespace {

constexpr std::size_t kMaxLinks = 1024;
constexpr int kMaxMessages = 64;
constexpr std::chrono::milliseconds kLookForDead(5);
constexpr std::chrono::seconds kLastWait(1);

}  // namespace

// One initiator's side channel.
class CudaServer::Link final : public net::Handler {
 public:
  Link(CudaServer& server, net::Descriptor socket) : server_(server), socket_(std::move(socket)) {}

  bool on_events(uint32_t events) override {
    if (!socket_.valid()) return false;
    if ((events & EPOLLOUT) != 0 && outbox_.flush(socket_) == net::SideIo::kDone)
      server_.site_.loop.change(loop_id_, socket_, EPOLLIN);
    if (!receive()) server_.drop(*this);
    return false;
  }

  // False: the link is over.
  bool receive() {
    for (int i = 0; i < kMaxMessages; ++i) {
      const net::SideIo io = net::receive_side(socket_, message_);
      if (io == net::SideIo::kLater) return true;
      if (io == net::SideIo::kOver || !take(message_.bytes())) return false;
    }
    return true;
  }

  void send(std::span<const std::byte> message) {
    if (outbox_.send(socket_, {message.begin(), message.end()}) == net::SideIo::kLater)
      server_.site_.loop.change(loop_id_, socket_, EPOLLIN | EPOLLOUT);
  }

 private:
  friend class CudaServer;

  bool take(std::span<const std::byte> bytes) {
    const auto kind = ipc::read_as<ipc::Kind>(bytes);
    if (!kind) return false;
    if (!greeted_) {
      const auto hello = ipc::read_as<ipc::Hello>(bytes);
      const auto who = net::credentials_of(socket_);
      if (*kind != ipc::Kind::kHello || !hello || hello->ticket != server_.ticket_ || !who)
        return false;
      greeted_ = true;
      process_ = {who->pid, hello->start_time};
      send(ipc::bytes_of(ipc::SegmentMessage{ipc::Kind::kWelcome}));
      return true;
    }
    const auto segment = ipc::read_as<ipc::SegmentMessage>(bytes);
    if (!segment) return false;
    if (*kind == ipc::Kind::kOpen)
      send(ipc::bytes_of(server_.open(*this, *segment)));
    else if (*kind == ipc::Kind::kRelease)
      server_.release(*this, [&](const Holder& holder) {
        return holder.slot == segment->slot && holder.epoch == segment->epoch;
      });
    else if (*kind == ipc::Kind::kBye)
      server_.release(*this, [](const Holder&) { return true; });
    return *kind != ipc::Kind::kBye;
  }

  CudaServer& server_;
  net::Descriptor socket_;
  net::Loop::Id loop_id_ = 0;
  bool greeted_ = false;
  net::ProcessId process_;
  net::SideMessage message_;
  net::SideOutbox outbox_;
};

CudaServer::CudaServer(const Site& site, net::SideListener listener)
    : site_(site), name_(listener.name), acceptor_(site.loop, std::move(listener.socket)) {
  net::fill_random(ticket_);
}

CudaServer::~CudaServer() { stop(); }

void CudaServer::start() { acceptor_.start(shared_from_this()); }

void CudaServer::stop() {
  if (!acceptor_.stop()) return;
  std::vector<Holder> held;
  {
    const std::lock_guard lock(mutex_);
    offered_.clear();
    held = holders_;
  }
  for (const Holder& holder : held) announce(holder.slot, holder.epoch);
  const auto is_held = [this] {
    const std::lock_guard lock(mutex_);
    forget_dead();
    return !holders_.empty();
  };
  for (const auto end = Clock::now() + kLastWait; is_held() && Clock::now() < end;) {
    std::vector<std::shared_ptr<Link>> links;
    for (const auto& [link, kept] : links_) links.push_back(kept);
    for (const auto& link : links)
      if (!link->receive()) drop(*link);
    poll(nullptr, 0, 1);
  }
  while (!links_.empty()) drop(*links_.begin()->second);
}

bool CudaServer::on_events(uint32_t) {
  acceptor_.accept([this](net::Descriptor socket) {
    if (!net::is_near(socket) || links_.size() == kMaxLinks) return;
    const auto link = std::make_shared<Link>(*this, std::move(socket));
    link->loop_id_ = site_.loop.add(link->socket_, EPOLLIN, link);
    links_.emplace(link.get(), link);
  });
  return false;
}

void CudaServer::drop(Link& link) {
  const auto found = links_.find(&link);
  if (found == links_.end()) return;
  const std::shared_ptr<Link> held = std::move(found->second);
  links_.erase(found);
  site_.loop.remove(held->loop_id_, held->socket_);
  held->socket_.close();
  {
    const std::lock_guard lock(mutex_);
    for (Holder& holder : holders_)
      if (holder.link == held.get()) holder.link = nullptr;
  }
  released_.notify_all();
}

void CudaServer::offer(const Segment& segment, const net::cuda::Device& device,
                       const net::cuda::Device::Shared& shared) {
  ipc::OpenedMessage opened;
  opened.segment.slot = segment.slot;
  opened.segment.epoch = segment.epoch;
  opened.device = device.uuid();
  opened.handle = shared.handle;
  opened.offset = shared.offset;
  opened.size = segment.size;
  opened.writable = segment.access == Access::kWrite;
  const std::lock_guard lock(mutex_);
  offered_[segment.slot] = {segment.epoch, opened};
}

ipc::OpenedMessage CudaServer::open(const Link& link, const ipc::SegmentMessage& asked) {
  const std::lock_guard lock(mutex_);
  const auto found = offered_.find(asked.slot);
  if (found == offered_.end() || found->second.epoch != asked.epoch) {
    ipc::OpenedMessage refused;
    refused.segment = asked;
    refused.segment.kind = ipc::Kind::kOpened;
    refused.segment.status = Status::kSegmentClosed;
    return refused;
  }
  holders_.push_back({&link, link.process_, asked.slot, asked.epoch});
  return found->second.opened;
}

void CudaServer::release(const Link& link, const std::function<bool(const Holder&)>& which) {
  {
    const std::lock_guard lock(mutex_);
    std::erase_if(holders_,
                  [&](const Holder& holder) { return holder.link == &link && which(holder); });
  }
  released_.notify_all();
}

void CudaServer::announce(uint32_t slot, uint32_t epoch) {
  std::vector<const Link*> holding;
  {
    const std::lock_guard lock(mutex_);
    for (const Holder& holder : holders_)
      if (holder.slot == slot && holder.epoch == epoch) holding.push_back(holder.link);
  }
  ipc::SegmentMessage closed{ipc::Kind::kClosed};
  closed.slot = slot;
  closed.epoch = epoch;
  for (const auto& [link, kept] : links_)
    if (std::ranges::find(holding, link) != holding.end()) link->send(ipc::bytes_of(closed));
}

void CudaServer::forget_dead() {
  std::erase_if(holders_, [](const Holder& holder) {
    return holder.link == nullptr && !net::is_alive(holder.process);
  });
}

bool CudaServer::withdraw(const Segment& segment, Clock::time_point until) {
  const uint32_t slot = segment.slot;
  const uint32_t epoch = segment.epoch;
  const auto is_of = [&](const Holder& holder) {
    return holder.slot == slot && holder.epoch == epoch;
  };
  std::unique_lock lock(mutex_);
  const auto found = offered_.find(slot);
  if (found != offered_.end() && found->second.epoch == epoch) offered_.erase(found);
  if (std::ranges::none_of(holders_, is_of)) return true;
  lock.unlock();
  site_.loop.post([self = shared_from_this(), slot, epoch] { self->announce(slot, epoch); });
  lock.lock();
  for (;;) {
    forget_dead();
    if (std::ranges::none_of(holders_, is_of)) return true;
    const Clock::time_point now = Clock::now();
    if (now >= until) return false;
    // Nobody tells when a process that hung up is gone.
    const bool orphaned = std::ranges::any_of(
        holders_, [&](const Holder& holder) { return is_of(holder) && holder.link == nullptr; });
    released_.wait_until(lock, orphaned ? std::min(until, now + kLookForDead) : until);
  }
}

}  // namespace inlay::transfer
