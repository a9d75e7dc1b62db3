#include "engine.h"

#include <poll.h>
#include <sched.h>

#include <algorithm>

#include "../core/errors.h"
#include "../core/interrupt.h"

namespace inlay::transfer {

namespace {

constexpr double kForever_s = 1e6;
constexpr int kRetry_ms = 5;

// Spinning keeps the answerer off the only core.
int usable_spin(int spin_us) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  const bool one = sched_getaffinity(0, sizeof(cores), &cores) == 0 && CPU_COUNT(&cores) == 1;
  return one ? 0 : spin_us;
}

Clock::time_point after(double seconds) {
  if (!(seconds < kForever_s)) return Clock::time_point::max();
  return Clock::now() +
         std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

net::EngineId new_id() {
  net::EngineId id;
  net::fill_random(id);
  return id;
}

// Of "host:port" and "[host]:port".
std::string host_of(const std::string& address) {
  const std::string host = address.substr(0, address.rfind(':'));
  return host.starts_with('[') ? host.substr(1, host.size() - 2) : host;
}

}  // namespace

Engine::Engine(EngineOptions options)
    : spin_us_(usable_spin(options.spin_us)),
      loop_(spin_us_, [this](Clock::time_point now) { return tick(now); }),
      shares_(loop_, {options.runtime_dir, options.weight, std::move(options.nic_bandwidths)}),
      id_(new_id()) {
  const std::size_t token_bytes = options.token.size();
  if (token_bytes < 16 || token_bytes > 64)
    throw ArgumentError("token: must have 16..64 bytes, got " + std::to_string(token_bytes));
  net::Listener listener = net::listen_at(options.listen);
  address_ = listener.address;
  const Site site{loop_,
                  segments_,
                  id_,
                  std::move(options.token),
                  std::move(options.runtime_dir),
                  spin_us_,
                  host_of(address_),
                  !options.transports.empty(),
                  &shares_};
  transports_ = std::make_unique<Transports>(site, options.transports, options.plugins);
  server_ = std::make_shared<Server>(
      site, std::move(listener.socket),
      [this](const net::EngineId& from, std::span<const std::byte> question) {
        net::Question asked;
        if (net::decode(question, asked) && asked.transport == Arrivals::kName)
          return arrivals_.take(from, asked.body);
        return transports_->answer(from, question);
      });
  transports_->tcp().serve(server_, address_);
  server_->start();
  loop_.start();
}

Engine::~Engine() { close(); }

void Engine::require_open() const {
  if (closed_) throw TransferFailure(Status::kEngineClosed, "the transfer engine is closed");
}

void Engine::add(const std::shared_ptr<Segment>& segment) {
  require_open();
  segments_.add(segment);
  try {
    transports_->attach(*segment);
  } catch (...) {
    segment->close();
    segments_.remove(*segment);
    throw;
  }
  segments_.publish(*segment);
}

std::shared_ptr<Segment> Engine::add_file(const FileOptions& options, const std::string& name,
                                          Access access, const std::function<void()>& interrupted) {
  require_open();
  transports_->require("file");
  std::shared_ptr<net::FileQueue> files;
  {
    const std::lock_guard lock(mutex_);
    if (files_ == nullptr) files_ = std::make_shared<net::FileQueue>();
    files = files_;
  }
  const auto file = std::make_shared<DiskFile>(options, std::move(files));
  if (access == Access::kWrite && !file->writable())
    throw TransferFailure(Status::kSegmentAccess,
                          "file '" + file->path + "' is read-only: peers cannot write it", name);
  try {
    return add_far({file, file->size(), file->writable(), {net::Place::kDisk, 0}}, name, access,
                   interrupted);
  } catch (...) {
    file->discard();
    throw;
  }
}

void Engine::start_cuda() {
  require_open();
  transports_->cuda().start();
}

std::shared_ptr<Segment> Engine::add_device(uint64_t address, uint64_t size, bool writable,
                                            std::shared_ptr<const void> keeper,
                                            const std::string& name, Access access,
                                            const std::function<void()>& interrupted) {
  require_open();
  const CudaTransport::Found found = transports_->cuda().open(address, size, std::move(keeper));
  return add_far({found.memory, size, writable, found.location}, name, access, interrupted);
}

std::shared_ptr<Segment> Engine::add_far(FarOptions options, const std::string& name, Access access,
                                         const std::function<void()>& interrupted) {
  constexpr double kConnect_s = 5;
  require_open();
  auto segment = std::make_shared<Segment>(nullptr, options.size, options.writable, access, name,
                                           options.memory, options.location);
  segment->far = options.memory.get();
  auto remote = std::make_shared<RemoteSegment>();
  remote->name = name;
  remote->own = segment;
  segment->as_remote = remote;
  remote->peer = connect(address_, kConnect_s, interrupted);
  add(segment);
  remote->descriptor = {segment->slot,     segment->epoch,    segment->size, true,
                        segment->writable, segment->location, segment->keys, false};
  return segment;
}

std::shared_ptr<StagingArea> Engine::staging() {
  const std::lock_guard lock(making_staging_);
  if (staging_ == nullptr) {
    auto area = std::make_shared<StagingArea>(free_name());
    add(area->segment());
    staging_ = std::move(area);
  }
  return staging_;
}

std::string Engine::free_name() { return "segment-" + std::to_string(++last_name_); }

bool Engine::remove(const std::shared_ptr<Segment>& segment, bool cancel, Clock::time_point until) {
  const bool was_open = segment->close();
  if (was_open) segments_.remove(*segment);
  if (cancel && !closed_) {
    for (const auto& peer : peers())
      for (const auto& batch : peer->dispatch().batches())
        if (batch->uses(*segment)) batch->stop(Status::kCancelled, std::chrono::milliseconds(50));
    loop_.wake_by(Clock::now() + std::chrono::milliseconds(50));
    loop_.post([server = server_, segment] { server->evict(*segment); });
  }
  return transports_->detach(*segment, until) && segment->wait_unused(until);
}

std::vector<std::shared_ptr<Peer>> Engine::peers() const {
  const std::lock_guard lock(mutex_);
  return peers_;
}

std::shared_ptr<Peer> Engine::find_peer(const net::EngineId& id) const {
  const std::lock_guard lock(mutex_);
  for (const auto& peer : peers_)
    if (peer->engine == id && peer->alive()) return peer;
  return nullptr;
}

std::shared_ptr<Peer> Engine::connect(const std::string& address, double timeout_s,
                                      const std::function<void()>& interrupted) {
  require_open();
  const Clock::time_point end = after(timeout_s);
  TurnQueue::Turn turn(connecting_);
  while (!turn.wait(std::min(end, Clock::now() + kInterruptEvery))) {
    if (Clock::now() >= end)
      throw TransferFailure(Status::kPeerUnreachable,
                            "peer " + address +
                                " was not asked within the time allowed: an engine connects to one "
                                "peer at a time, and the calls before this one took until then",
                            {}, address);
    interrupted();
    require_open();
  }
  for (;;) {
    try {
      return connect_once(address, end, interrupted);
    } catch (const TcpTransport::ClosedAtOnce&) {
      // As a port under a flood does with honest connections, too.
      if (Clock::now() >= end) throw;
    }
    interrupted();
    require_open();
    poll(nullptr, 0, kRetry_ms);
  }
}

std::shared_ptr<Peer> Engine::connect_once(const std::string& address, Clock::time_point end,
                                           const std::function<void()>& interrupted) {
  TcpTransport& tcp = transports_->tcp();
  const uint32_t generation = ++last_generation_;
  const uint64_t connection = uint64_t{generation} << 32;
  std::shared_ptr<Peer> known;
  TcpTransport::Dialed dialed = tcp.dial(
      address, net::LaneKind::kSmall, connection,
      [&](const net::EngineId& id) { return (known = find_peer(id)) != nullptr; }, end,
      interrupted);
  if (known != nullptr) return known;
  const auto peer = std::make_shared<Peer>(loop_, address, dialed.target, generation);
  peer->add_lane(tcp.make_lane(peer, std::move(dialed.socket), connection, net::LaneKind::kSmall));
  {
    const std::lock_guard lock(mutex_);
    connecting_to_ = peer;
  }
  if (closed_) peer->lose(Status::kEngineClosed, false);
  const Peer::Answer offers =
      peer->ask_and_wait(net::Kind::kAsk, net::encode_question({}, {}), end, interrupted);
  if (offers.status != Status::kOk) throw TcpTransport::ClosedAtOnce(address);
  transports_->connect(peer, offers.bytes, end);
  interrupted();
  if (!peer->alive()) throw TcpTransport::ClosedAtOnce(address);
  if (!peer->dispatch().has_paths()) {
    std::string text = "peer " + address + " and this engine have no transport in common";
    for (const std::string& problem : peer->problems()) text += "; " + problem;
    throw TransferFailure(Status::kPeerUnreachable, text, {}, address);
  }
  add_peer(peer);
  return peer;
}

void Engine::add_peer(const std::shared_ptr<Peer>& peer) {
  std::vector<std::shared_ptr<Peer>> settled;
  std::vector<std::shared_ptr<Peer>> forgotten;
  {
    const std::lock_guard lock(mutex_);
    std::erase_if(peers_, [&](const auto& old) {
      // The target has shut the lanes of earlier generations, or is another process.
      const bool same = old->engine == peer->engine || old->address == peer->address;
      if (old->alive() || (!same && old->settles())) return false;
      (same ? settled : forgotten).push_back(old);
      return true;
    });
    peers_.push_back(peer);
  }
  for (const auto& old : settled) old->settle();
  for (const auto& old : forgotten) old->forget();
  if (closed_) peer->lose(Status::kEngineClosed, false);
}

void Engine::check(const Request& request) const {
  const Segment& local = *request.local;
  const RemoteSegment& remote = *request.remote;
  const bool read = request.op == Op::kRead;
  if (read && !local.writable)
    throw TransferFailure(Status::kSegmentAccess,
                          "segment '" + local.name + "' is read-only: a read cannot fill it",
                          local.name);
  if (!(read ? remote.descriptor.readable : remote.descriptor.writable))
    throw TransferFailure(Status::kSegmentAccess,
                          "segment '" + remote.name + "' of peer " + remote.peer->address +
                              " is not offered for writing (remote=Access.WRITE)",
                          remote.name, remote.peer->address);
  if (request.checksum && local.far != nullptr)
    throw ArgumentError("checksum: segment '" + local.name +
                        "' is a file or memory of a device, whose bytes do not pass this process; "
                        "sum them up in host memory");
  // Of host memory the copy itself finds out.
  const bool is_itself = local.far != nullptr && remote.peer->engine == id_ &&
                         remote.descriptor.slot == local.slot &&
                         remote.descriptor.epoch == local.epoch;
  for (const Range& range : request.ranges) {
    const bool local_fits = local.contains(range.local, range.length);
    if (local_fits && remote.contains(range.remote, range.length)) {
      if (!is_itself || range.local + range.length <= range.remote ||
          range.remote + range.length <= range.local)
        continue;
      throw TransferFailure(Status::kSegmentOverlap,
                            "segment '" + local.name + "': " + std::to_string(range.length) +
                                " bytes from offset " + std::to_string(range.local) +
                                " on overlap those from " + std::to_string(range.remote) + " on",
                            local.name);
    }
    const uint64_t offset = local_fits ? range.remote : range.local;
    const uint64_t size = local_fits ? remote.descriptor.size : local.size;
    const std::string& name = local_fits ? remote.name : local.name;
    throw TransferFailure(Status::kSegmentRange,
                          std::to_string(range.length) + " bytes at offset " +
                              std::to_string(offset) + " reach beyond segment '" + name + "' of " +
                              std::to_string(size) + " bytes",
                          name, local_fits ? remote.peer->address : std::string());
  }
}

std::shared_ptr<Batch> Engine::submit(std::vector<Request> requests, double deadline_s,
                                      const std::optional<Bytes>& notification) {
  require_open();
  std::vector<std::shared_ptr<Peer>> notified;
  if (notification) {
    Messenger::check({}, *notification);
    for (const Request& request : requests)
      if (std::ranges::find(notified, request.remote->peer) == notified.end())
        notified.push_back(request.remote->peer);
  }
  for (Request& request : requests) {
    std::erase_if(request.ranges, [](const Range& range) { return range.length == 0; });
    check(request);
    request.bytes = 0;
    for (const Range& range : request.ranges) request.bytes += range.length;
    if (request.local->far != nullptr) request.remote->peer->stage_through(staging());
  }
  const Clock::time_point deadline = after(deadline_s);
  const auto batch = std::make_shared<Batch>(std::move(requests), deadline, deadline_s, spin_us_);
  batch->start();
  if (notification) messenger_->notify_after(*batch, std::move(notified), *notification, deadline);
  if (!batch->over() && deadline != Clock::time_point::max()) loop_.wake_by(deadline);
  return batch;
}

std::vector<PathSnapshot> Engine::paths() const {
  require_open();
  std::vector<PathSnapshot> all;
  for (const auto& peer : peers()) {
    auto some = peer->dispatch().snapshot(peer->address);
    std::ranges::move(some, std::back_inserter(all));
  }
  return all;
}

void Engine::hold(const std::string& peer, const std::string& transport, const std::string& name,
                  bool held) {
  require_open();
  bool found = false;
  for (const auto& one : peers())
    if (one->address == peer) found |= one->hold(transport, name, held);
  if (!found)
    throw ArgumentError("path: there is no '" + name + "' of transport " + transport + " to peer " +
                        peer);
}

void Engine::cancel(Batch& batch, Clock::duration grace) {
  batch.stop(Status::kCancelled, grace);
  if (!batch.over()) loop_.wake_by(Clock::now() + grace);
}

Messenger& Engine::messenger() {
  require_open();
  return *messenger_;
}

Arrivals& Engine::arrivals() {
  require_open();
  return arrivals_;
}

Clock::time_point Engine::tick(Clock::time_point now) {
  Clock::time_point next = std::min(
      {server_->tick(now), transports_->tick(now), messenger_->tick(now), shares_.tick(now)});
  for (const auto& peer : peers()) {
    for (const auto& batch : peer->dispatch().batches())
      next = std::min(next, batch->check_time(now));
    next = std::min(next, peer->settle_due(now));
    peer->fill();  // paths that rested may be tried again
    next = std::min(next, peer->dispatch().next_try(now));
  }
  return next;
}

std::vector<std::shared_ptr<Segment>> Engine::close() {
  if (closed_.exchange(true)) return {};
  loop_.stop();
  server_->stop();
  messenger_->close();
  arrivals_.close();
  std::shared_ptr<Peer> connecting;
  {
    const std::lock_guard lock(mutex_);
    connecting = connecting_to_.lock();
  }
  if (connecting != nullptr) connecting->lose(Status::kEngineClosed, false);
  for (const auto& peer : peers()) {
    peer->lose(Status::kEngineClosed, false);
    peer->forget();
  }
  transports_->close();
  std::shared_ptr<net::FileQueue> files;
  {
    const std::lock_guard lock(mutex_);
    files = files_;
  }
  if (files != nullptr) files->stop();
  auto segments = segments_.all();
  for (const auto& segment : segments) {
    segment->close();
    segments_.remove(*segment);
  }
  return segments;
}

}  // namespace inlay::transfer
