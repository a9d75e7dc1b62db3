#include "fabric_target.h"

#include <sys/epoll.h>
#include <time.h>

#include <algorithm>

#include "../core/status.h"
#include "../net/bytes.h"
#include "../net/fabric/connected.h"
#include "../net/fabric/unconnected.h"

namespace inlay::transfer {

namespace fabric = net::fabric;

namespace {

constexpr uint64_t kLeaseNs = 2'000'000'000;
// Initiators ask every 5 s at least.
constexpr uint64_t kSilentNs = 20'000'000'000;
constexpr std::size_t kMaxServed = 64;  // connections of one initiator
constexpr std::size_t kMaxTaken = 1024;

// Counts while the process is stopped and the machine sleeps.
uint64_t boot_time_ns() {
  timespec now{};
  clock_gettime(CLOCK_BOOTTIME, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

}  // namespace

class FabricTarget::Served final : public net::Handler,
                                   public FabricConnection,
                                   public std::enable_shared_from_this<Served>,
                                   private fabric::EndpointSink {
 public:
  Served(FabricTarget& target, const std::shared_ptr<FabricPort>& port,
         const fabric::Greeting& greeting, std::unique_ptr<fabric::Endpoint> endpoint)
      : target_(target), port(port), greeting(greeting), endpoint(std::move(endpoint)) {}

  FabricTarget& target_;
  const std::shared_ptr<FabricPort> port;
  const fabric::Greeting greeting;
  const std::unique_ptr<fabric::Endpoint> endpoint;
  fabric::UnconnectedEndpoint* unconnected = nullptr;  // the same, where it has no connection
  const fid* connected = nullptr;                      // its id, where it has
  net::Loop::Id loop_id = 0;
  bool dropped = false;
  uint64_t lease = 0;
  uint64_t lease_end = 0;  // 0: none
  uint64_t heard = boot_time_ns();
  uint64_t awaited_until = heard + kLeaseNs;  // its initiator looks for us first

  uint64_t late_after() const {
    const uint64_t silent = unconnected != nullptr ? heard + kSilentNs : kNever;
    return lease_end == 0 ? silent : std::min(lease_end, silent);
  }
  bool is_late() const { return boot_time_ns() > late_after(); }
  bool is_needed() const { return lease_end != 0 || boot_time_ns() < awaited_until; }

  bool on_events(uint32_t) override {
    target_.drop_late();
    const std::lock_guard lock(target_.mutex_);
    if (dropped) return false;
    for (int i = 0; i < 16; ++i) {
      endpoint->progress(*this);
      if (endpoint->may_sleep()) break;
      target_.drop_late_now();  // we may be stopped at any time
      if (dropped) return false;
    }
    return true;
  }
  void on_connected(std::span<const std::byte>) override {}
  void on_ended() override {
    const std::lock_guard lock(target_.mutex_);
    target_.drop(shared_from_this());
  }

 private:
  void on_completion(void*, int) override {}
};

bool FabricTarget::take_number(Initiator& initiator, uint64_t connection) {
  if (connection < initiator.least || !initiator.taken.insert(connection).second) return false;
  if (initiator.taken.size() > kMaxTaken) {
    initiator.least = *initiator.taken.begin() + 1;
    initiator.taken.erase(initiator.taken.begin());
  }
  return true;
}

void FabricTarget::on_request(const std::shared_ptr<FabricPort>& port, const fi_info& info,
                              std::span<const std::byte> greeting) {
  const auto claim = fabric::read_greeting(greeting);
  const fabric::Meeting meeting{claim.value_or(fabric::Greeting{}), site_.engine, nonce_};
  const std::lock_guard lock(mutex_);
  fabric::ConnectionManager& manager = *port->manager;
  if (!claim || !fabric::proves(greeting, meeting, site_.token)) return manager.refuse(info);
  Initiator& initiator = initiators_[claim->initiator];
  if (!take_number(initiator, claim->connection) || initiator.served.size() >= kMaxServed)
    return manager.refuse(info);
  try {
    auto endpoint = std::make_unique<fabric::ConnectedEndpoint>(manager, info);
    auto& connected = *endpoint;
    const auto served = std::make_shared<Served>(*this, port, *claim, std::move(endpoint));
    port->add(connected.id(), served);
    served->connected = connected.id();
    serve(initiator, served);
    connected.accept(fabric::reply(meeting, site_.token));
  } catch (const std::exception&) {  // the system or the provider has no more to give
    if (const auto found = initiator.served.find(claim->connection);
        found != initiator.served.end())
      drop(found->second);
    manager.refuse(info);
  }
}

void FabricTarget::serve(Initiator& initiator, const std::shared_ptr<Served>& served) {
  served->loop_id = site_.loop.add(served->endpoint->descriptor(), EPOLLIN, served);
  initiator.served[served->greeting.connection] = served;
  none_late_until_ = std::min(none_late_until_.load(), served->late_after());
}

// Who asks over a lane has proved itself there.
Transport::Answer FabricTarget::open(const net::EngineId& from, const FabricQuestion& question) {
  if (question.port >= ports_.size()) return {Status::kProtocol, {}};
  const std::shared_ptr<FabricPort>& port = ports_[question.port];
  if (port->domain.connected()) return {Status::kProtocol, {}};
  Initiator& initiator = initiators_[from];
  if (!take_number(initiator, question.connection) || initiator.served.size() >= kMaxServed)
    return {Status::kPeerRefused, {}};
  try {
    auto endpoint = std::make_unique<fabric::UnconnectedEndpoint>(port->domain);
    auto& unconnected = *endpoint;
    if (!unconnected.join(question.address)) return {Status::kProtocol, {}};
    const fabric::Greeting greeting{from, question.connection};
    const auto served = std::make_shared<Served>(*this, port, greeting, std::move(endpoint));
    served->unconnected = &unconnected;
    serve(initiator, served);
    unconnected.attend(true);
    return {Status::kOk, encode(port->welcome(unconnected.address()))};
  } catch (const std::exception&) {
    return {Status::kTransportUnavailable, {}};
  }
}

void FabricTarget::drop(const std::shared_ptr<Served>& served) {
  if (served->dropped) return;
  served->dropped = true;
  site_.loop.remove(served->loop_id, served->endpoint->descriptor());
  if (served->connected != nullptr) served->port->forget(served->connected);
  served->endpoint->close();
  initiators_[served->greeting.initiator].served.erase(served->greeting.connection);
}

Status FabricTarget::check_segment(const FabricQuestion& question) const {
  const auto use = site_.segments.use(question.slot, question.epoch);
  if (use == nullptr) return Status::kSegmentClosed;
  const Access wanted = question.write ? Access::kWrite : Access::kRead;
  return use->segment().unguarded() < wanted ? Status::kSegmentAccess : Status::kOk;
}

Transport::Answer FabricTarget::lease(const net::EngineId& from, const FabricQuestion& question) {
  Initiator& initiator = initiators_[from];
  const auto found = initiator.served.find(question.connection);
  if (found == initiator.served.end()) return {Status::kPeerUnreachable, {}};
  const std::shared_ptr<Served> served = found->second;
  if (served->is_late()) {
    drop(served);
    return {Status::kPeerUnreachable, {}};
  }
  const uint64_t now = boot_time_ns();
  if (question.last_time == 0) {
    served->lease = question.lease;
    served->lease_end = now + kLeaseNs;
    served->awaited_until = 0;
    none_late_until_ = std::min(none_late_until_.load(), served->lease_end);
    if (served->unconnected != nullptr) served->unconnected->attend(true);
  } else if (question.lease == served->lease && served->lease_end != 0) {
    served->lease_end = std::max(served->lease_end, std::min(question.last_time, now) + kLeaseNs);
  }
  Bytes time(sizeof(now));
  net::store(time.data(), now);
  return {Status::kOk, std::move(time)};
}

Transport::Answer FabricTarget::answer(const net::EngineId& from, const FabricQuestion& question) {
  if (question.ask == FabricAsk::kSegment) return {check_segment(question), {}};
  const std::lock_guard lock(mutex_);
  if (question.ask == FabricAsk::kOpen) return open(from, question);
  Initiator& initiator = initiators_[from];
  const auto found = initiator.served.find(question.connection);
  const std::shared_ptr<Served> served = found == initiator.served.end() ? nullptr : found->second;
  if (served != nullptr && !served->is_late()) served->heard = boot_time_ns();
  if (question.ask == FabricAsk::kLease) return lease(from, question);
  if (question.ask == FabricAsk::kKeep)
    return {served == nullptr ? Status::kPeerUnreachable : Status::kOk, {}};
  if (question.ask == FabricAsk::kFence) {
    take_number(initiator, question.connection);
    if (served != nullptr) drop(served);
  } else if (served != nullptr && served->lease == question.lease && !served->is_late()) {
    served->lease_end = 0;
  }
  return {};
}

// We may have been stopped for a while.
void FabricTarget::drop_late() {
  if (!some_may_be_late()) return;
  const std::lock_guard lock(mutex_);
  drop_all_late();
}

void FabricTarget::drop_late_now() {
  if (some_may_be_late()) drop_all_late();
}

bool FabricTarget::some_may_be_late() const {
  const uint64_t until = none_late_until_;
  return until != kNever && boot_time_ns() > until;
}

void FabricTarget::drop_all_late() {
  std::vector<std::shared_ptr<Served>> late;
  uint64_t none_late_until = kNever;
  for (const auto& [id, initiator] : initiators_)
    for (const auto& [number, served] : initiator.served) {
      if (served->is_late())
        late.push_back(served);
      else
        none_late_until = std::min(none_late_until, served->late_after());
    }
  for (const auto& served : late) drop(served);
  none_late_until_ = none_late_until;
}

void FabricTarget::beat() {
  const std::lock_guard lock(mutex_);
  drop_all_late();
  for (const auto& [id, initiator] : initiators_)
    for (const auto& [number, served] : initiator.served)
      if (served->unconnected != nullptr) served->unconnected->attend(served->is_needed());
}

void FabricTarget::evict() {
  const std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<Served>> doubtful;
  for (const auto& [id, initiator] : initiators_)
    for (const auto& [number, served] : initiator.served)
      if (!served->port->domain.regions_fence()) doubtful.push_back(served);
  for (const auto& served : doubtful) drop(served);
}

void FabricTarget::close() {
  const std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<Served>> all;
  for (const auto& [id, initiator] : initiators_)
    for (const auto& [number, served] : initiator.served) all.push_back(served);
  for (const auto& served : all) drop(served);
}

}  // namespace inlay::transfer
