#include "engine.h"

#include <poll.h>
#include <sched.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <future>
#include <map>

#include "../core/errors.h"

namespace inlay::transfer {

namespace {

constexpr uint64_t kSmallBytes = 65536;
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

class ClosedAtOnce : public TransferFailure {
 public:
  explicit ClosedAtOnce(const std::string& address)
      : TransferFailure(Status::kPeerUnreachable,
                        "peer " + address + " closed the connection before it was made", {},
                        address) {}
};

TransferFailure handshake_failure(const net::ClientHandshake& handshake,
                                  const std::string& address) {
  const auto range = [](int least, int most) {
    return std::to_string(least) + " to " + std::to_string(most);
  };
  switch (handshake.status()) {
    case Status::kPeerRefused:
      return {Status::kPeerRefused,
              "peer " + address + " holds another token: give both engines the same one",
              {},
              address};
    case Status::kProtocolVersion:
      return {Status::kProtocolVersion,
              "peer " + address + " speaks versions " +
                  range(handshake.target_min(), handshake.target_max()) + ", this engine " +
                  range(net::kMinVersion, net::kMaxVersion) + " of the protocol",
              {},
              address};
    default:
      return {Status::kProtocol,
              "what listens at " + address + " is no Inlay transfer engine",
              {},
              address};
  }
}

}  // namespace

Engine::Engine(EngineOptions options)
    : spin_us_(usable_spin(options.spin_us)),
      token_(std::move(options.token)),
      loop_(spin_us_, [this](Clock::time_point now) { return tick(now); }) {
  if (token_.size() < 16 || token_.size() > 64)
    throw ArgumentError("token: must have 16..64 bytes, got " + std::to_string(token_.size()));
  net::fill_random(id_);
  net::Listener listener = net::listen_at(options.listen);
  address_ = listener.address;
  server_ = std::make_shared<Server>(loop_, segments_, id_, token_, std::move(listener.socket));
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
}

std::string Engine::free_name() { return "segment-" + std::to_string(++last_name_); }

bool Engine::remove(const std::shared_ptr<Segment>& segment, bool cancel, Clock::time_point until) {
  const bool was_open = segment->close();
  if (was_open) segments_.remove(*segment);
  if (cancel && !closed_) {
    for (const auto& peer : peers())
      for (const auto& batch : peer->batches())
        if (batch->uses(*segment)) batch->stop(Status::kCancelled, std::chrono::milliseconds(50));
    loop_.wake_by(Clock::now() + std::chrono::milliseconds(50));
    loop_.post([server = server_, segment] { server->evict(*segment); });
  }
  return segment->wait_unused(until);
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

net::Descriptor Engine::open_lane(const std::string& address, net::LaneKind kind,
                                  uint64_t connection, net::EngineId& target,
                                  std::shared_ptr<Peer>* known, Clock::time_point end,
                                  const std::function<void()>& interrupted) {
  net::Descriptor socket = net::connect_to(address, end, interrupted);
  net::Hello hello;
  hello.lane = kind;
  hello.engine = id_;
  hello.connection = connection;
  net::fill_random(hello.nonce);
  net::ClientHandshake handshake(hello, token_);
  while (handshake.wanted() > 0) {
    const auto output = handshake.output();
    if (!output.empty() && send(socket.get(), output.data(), output.size(), MSG_NOSIGNAL) !=
                               static_cast<ssize_t>(output.size()))
      throw ClosedAtOnce(address);
    std::vector<std::byte> answer(handshake.wanted());
    for (std::size_t have = 0; have < answer.size();) {
      if (!net::wait_for(socket, POLLIN, end, interrupted))
        throw TransferFailure(Status::kPeerUnreachable,
                              "peer " + address + " accepted the connection but does not answer",
                              {}, address);
      const ssize_t n = recv(socket.get(), answer.data() + have, answer.size() - have, 0);
      if (n > 0) have += static_cast<std::size_t>(n);
      if (n == 0 || (n < 0 && errno != EAGAIN)) throw ClosedAtOnce(address);
    }
    handshake.take(answer);
    if (handshake.status() != Status::kOk) throw handshake_failure(handshake, address);
    // Before our proof, with which the target closes the lanes of earlier connections.
    if (known != nullptr && (*known = find_peer(handshake.target())) != nullptr) return {};
  }
  target = handshake.target();
  return socket;
}

std::shared_ptr<Peer> Engine::connect(const std::string& address, double timeout_s,
                                      const std::function<void()>& interrupted) {
  require_open();
  const Clock::time_point end = after(timeout_s);
  std::unique_lock one_at_a_time(connecting_, std::try_to_lock);
  while (!one_at_a_time) {
    if (Clock::now() >= end)
      throw TransferFailure(Status::kPeerUnreachable,
                            "peer " + address + " was not asked: another thread still connects", {},
                            address);
    interrupted();
    poll(nullptr, 0, kRetry_ms);
    (void)one_at_a_time.try_lock();
  }
  const uint64_t connection = ++last_connection_;
  for (;;) {
    try {
      net::EngineId id{};
      net::EngineId second{};
      std::shared_ptr<Peer> known;
      std::array<net::Descriptor, 2> sockets;
      sockets[0] =
          open_lane(address, net::LaneKind::kSmall, connection, id, &known, end, interrupted);
      if (known != nullptr) return known;
      sockets[1] =
          open_lane(address, net::LaneKind::kBulk, connection, second, nullptr, end, interrupted);
      if (second != id)
        throw TransferFailure(Status::kPeerUnreachable,
                              "peer " + address + " restarted while it was connected to", {},
                              address);
      const auto peer = std::make_shared<Peer>(address, id, spin_us_);
      peer->start(loop_, std::move(sockets));
      {
        const std::lock_guard lock(mutex_);
        std::erase_if(peers_, [](const auto& old) { return !old->alive(); });
        peers_.push_back(peer);
      }
      if (closed_) peer->lose(Status::kEngineClosed, false);
      return peer;
    } catch (const ClosedAtOnce&) {
      // As a port under a flood does with honest connections, too.
      if (Clock::now() >= end) throw;
    }
    interrupted();
    poll(nullptr, 0, kRetry_ms);
  }
}

void Engine::check(const Request& request) {
  const Segment& local = *request.local;
  const RemoteSegment& remote = *request.remote;
  const bool read = request.op == Op::kRead;
  if (read && !local.writable)
    throw TransferFailure(Status::kSegmentAccess,
                          "segment '" + local.name + "' is read-only memory: a read cannot fill it",
                          local.name);
  if (!(read ? remote.descriptor.readable : remote.descriptor.writable))
    throw TransferFailure(Status::kSegmentAccess,
                          "segment '" + remote.name + "' of peer " + remote.peer->address +
                              " is not offered for writing (remote=Access.WRITE)",
                          remote.name, remote.peer->address);
  for (const Range& range : request.ranges) {
    const bool local_fits = local.contains(range.local, range.length);
    if (local_fits && remote.contains(range.remote, range.length)) continue;
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

std::shared_ptr<Batch> Engine::submit(std::vector<Request> requests, double deadline_s) {
  require_open();
  std::map<Peer*, uint64_t> bytes_to;
  for (Request& request : requests) {
    std::erase_if(request.ranges, [](const Range& range) { return range.length == 0; });
    check(request);
    request.bytes = 0;
    for (const Range& range : request.ranges) request.bytes += range.length;
    bytes_to[request.remote->peer.get()] += request.bytes;
  }
  // Small work does not stand behind large work.
  std::vector<std::shared_ptr<Lane>> lanes;
  lanes.reserve(requests.size());
  for (const Request& request : requests) {
    Peer* peer = request.remote->peer.get();
    const bool small = bytes_to[peer] <= kSmallBytes;
    lanes.push_back(peer->lane(small ? net::LaneKind::kSmall : net::LaneKind::kBulk));
  }
  const Clock::time_point deadline = after(deadline_s);
  const auto batch = std::make_shared<Batch>(std::move(requests), deadline, deadline_s, spin_us_);
  batch->start(lanes);
  if (!batch->over() && deadline != Clock::time_point::max()) loop_.wake_by(deadline);
  return batch;
}

void Engine::cancel(Batch& batch, Clock::duration grace) {
  batch.stop(Status::kCancelled, grace);
  if (!batch.over()) loop_.wake_by(Clock::now() + grace);
}

Clock::time_point Engine::tick(Clock::time_point now) {
  Clock::time_point next = server_->tick(now);
  for (const auto& peer : peers())
    for (const auto& batch : peer->batches()) next = std::min(next, batch->check_time(now));
  return next;
}

std::vector<std::shared_ptr<Segment>> Engine::close() {
  if (closed_.exchange(true)) return {};
  loop_.stop();
  server_->stop();
  for (const auto& peer : peers()) peer->lose(Status::kEngineClosed, false);
  auto segments = segments_.all();
  for (const auto& segment : segments) {
    segment->close();
    segments_.remove(*segment);
  }
  return segments;
}

}  // namespace inlay::transfer
