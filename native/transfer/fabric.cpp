#include "fabric.h"

#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <condition_variable>
#include <filesystem>
#include <mutex>

#include "../core/errors.h"
#include "../core/status.h"
#include "../net/links.h"
#include "fabric_beat.h"
#include "fabric_path.h"
#include "fabric_port.h"
#include "fabric_target.h"
#include "fabric_words.h"

namespace inlay::transfer {

namespace fabric = net::fabric;
using namespace std::chrono_literals;

namespace {

constexpr auto kFirstRetry = 100ms;
constexpr auto kLastRetry = 200ms;
// Providers of which it is known that closing an endpoint is a fence.
constexpr std::array kHardware{"verbs", "efa"};
constexpr const char* kSoftware = "tcp";
// Where reads are under way, closing the layer that the tcp provider has for this crashes (1.17).
constexpr const char* kUnconnectedSoftware = "udp;ofi_rxd";
constexpr const char* kDevices = "/sys/class/infiniband";
constexpr const char* kNoDevice =
    "there is no RDMA device in /sys/class/infiniband; name the transport to use libfabric's tcp "
    "provider, which is slower than transport tcp";

bool is_loopback(const std::string& host) {
  return host.starts_with("127.") || host == "::1" || host == "localhost";
}

bool is_any(const std::string& host) { return host.empty() || host == "0.0.0.0" || host == "::"; }

bool has_devices() {
  std::error_code error;
  const std::filesystem::directory_iterator devices(kDevices, error);
  return !error && devices != std::filesystem::directory_iterator();
}

class Fabric final : public Transport {
 public:
  Fabric(const Site& site, const char* software);
  ~Fabric() override { close(); }

  std::string_view name() const override { return "fabric"; }
  std::string problem() const override { return problem_; }
  Bytes attach(Segment& segment) override;
  bool detach(Segment& segment, Clock::time_point until) override;
  Bytes offer() override;
  Connected connect(const std::shared_ptr<PathOwner>& peer, std::span<const std::byte> offer,
                    Clock::time_point end) override;
  Answer answer(const net::EngineId& from, std::span<const std::byte> question) override;
  void close() override;

 private:
  // A rail with the path that it has now.
  struct Life {
    std::shared_ptr<const FabricRail> rail;
    std::shared_ptr<FabricPath> path;  // null: to be made at `next`
    Clock::time_point next{};
    Clock::duration pause = kFirstRetry;
    bool ready = false;
    bool awaited = true;  // connect() waits for it
  };

  std::string find_ports();
  std::vector<std::shared_ptr<const FabricRail>> rails_to(const std::shared_ptr<PathOwner>& peer,
                                                          const FabricOffer& offer) const;
  // Makes a path and lets it connect; when that fails at once, plans the next try.
  void begin_path(const std::shared_ptr<Life>& life);
  void rest(Life& life);
  void on_changed(const std::shared_ptr<Life>& life, FabricPath& path, FabricPath::State state);
  void beat();
  void link_changed(const net::LinkEvent& event);

  const Site site_;
  const char* const software_;
  net::Nonce nonce_{};
  std::string problem_;
  std::vector<std::shared_ptr<FabricPort>> ports_;
  FabricMemory memory_;
  FabricTarget target_;
  std::shared_ptr<FabricBeat> beat_;
  net::Loop::Id beat_id_ = 0;
  std::unique_ptr<net::LinkWatch> links_;  // null: links are not told of

  std::mutex mutex_;
  std::condition_variable changed_;
  bool closed_ = false;
  uint64_t last_connection_ = 0;
  std::vector<std::shared_ptr<Life>> lives_;
};

net::Nonce fresh_nonce() {
  net::Nonce nonce;
  net::fill_random(nonce);
  return nonce;
}

Fabric::Fabric(const Site& site, const char* software)
    : site_(site),
      software_(software),
      nonce_(fresh_nonce()),
      memory_(ports_),
      target_(site_, nonce_, ports_) {
  problem_ = find_ports();
  if (!problem_.empty()) return;
  for (const auto& port : ports_) port->start();
  beat_ = std::make_shared<FabricBeat>([this] { beat(); });
  beat_id_ = site_.loop.add(beat_->timer(), EPOLLIN, beat_);
  if (is_loopback(site_.host)) return;
  try {
    links_ = std::make_unique<net::LinkWatch>(
        site_.loop, [this](const net::LinkEvent& event) { link_changed(event); });
  } catch (const ResourceError&) {
    // Then paths that stall are noticed later.
  }
}

std::string Fabric::find_ports() {
  const bool loopback = is_loopback(site_.host);
  std::vector<const char*> providers;
  if (!loopback && has_devices())
    providers.insert(providers.end(), kHardware.begin(), kHardware.end());
  if (site_.by_name) providers.push_back(software_);
  if (providers.empty() && loopback)
    return "the engine listens on loopback only (" + site_.host +
           "), where no RDMA device is; name the transport to use libfabric's tcp provider there";
  if (providers.empty()) return kNoDevice;
  std::string why;
  const fabric::Library* library = fabric::load_library(why);
  if (library == nullptr) return why;
  for (const char* provider : providers) {
    // Devices of one machine are its own; only the provider in software binds to the host.
    const bool all = provider != software_ || is_any(site_.host);
    for (fabric::Info& info : fabric::find_ports(*library, provider, all ? "" : site_.host)) {
      try {
        ports_.push_back(std::make_shared<FabricPort>(
            site_.loop, static_cast<uint8_t>(ports_.size()), *library, std::move(info),
            [this](const auto& port, const fi_info& request, auto greeting) {
              target_.on_request(port, request, greeting);
            },
            [this] { target_.drop_late(); }));
      } catch (const std::exception& failure) {
        why = failure.what();
      }
      if (ports_.size() == 64) break;
    }
  }
  if (!ports_.empty()) return {};
  return why.empty() ? "libfabric has no port with remote memory access here" : why;
}

Bytes Fabric::attach(Segment& segment) {
  // What peers may not reach is registered at its first use.
  if (segment.access == Access::kNone || segment.location.place != net::Place::kHost) return {};
  return encode(memory_.share(segment));
}

bool Fabric::detach(Segment& segment, Clock::time_point until) {
  if (memory_.unshare(segment)) target_.evict();
  if (!segment.wait_unused(until)) return false;
  memory_.forget(segment);
  return true;
}

Bytes Fabric::offer() {
  FabricOffer offer{nonce_, {}};
  for (const auto& port : ports_) offer.ports.push_back(port->offer());
  return encode(offer);
}

std::vector<std::shared_ptr<const FabricRail>> Fabric::rails_to(
    const std::shared_ptr<PathOwner>& peer, const FabricOffer& offer) const {
  std::vector<std::shared_ptr<const FabricRail>> rails;
  std::map<std::string, std::size_t> met;  // ports of ours, by provider and network
  for (const auto& port : ports_) {
    const FabricPortOffer ours = port->offer();
    std::vector<std::size_t> theirs;
    for (std::size_t i = 0; i < offer.ports.size(); ++i)
      if (offer.ports[i].provider == ours.provider && offer.ports[i].network == ours.network &&
          offer.ports[i].address.empty() == ours.address.empty())
        theirs.push_back(i);
    if (theirs.empty()) continue;
    const std::size_t nth = met[ours.provider + ' ' + ours.network]++;
    const std::size_t remote = theirs[nth % theirs.size()];
    auto rail = std::make_shared<FabricRail>();
    rail->port = port;
    rail->remote_port = static_cast<uint8_t>(remote);
    rail->remote = offer.ports[remote];
    rail->meeting.greeting.initiator = site_.engine;
    rail->meeting.target = peer->engine_id();
    rail->meeting.nonce = offer.nonce;
    rail->peer = peer;
    if (port->manager) rail->info = port->manager->info_towards(rail->remote.address);
    rails.push_back(std::move(rail));
  }
  return rails;
}

void Fabric::begin_path(const std::shared_ptr<Life>& life) {
  uint64_t connection;
  {
    const std::lock_guard lock(mutex_);
    if (closed_) return;
    connection = ++last_connection_;
  }
  try {
    const auto path = std::make_shared<FabricPath>(
        site_, memory_, life->rail, connection,
        [this, life](FabricPath& path, FabricPath::State state) { on_changed(life, path, state); });
    {
      const std::lock_guard lock(mutex_);
      life->path = path;
    }
    path->start();
  } catch (const std::exception&) {  // the provider or the system has no more to give
    const std::lock_guard lock(mutex_);
    rest(*life);
  }
}

// Locked. The next try comes later each time, and soon again after one that went well.
void Fabric::rest(Life& life) {
  life.pause = life.ready ? kFirstRetry : std::min<Clock::duration>(2 * life.pause, kLastRetry);
  life.ready = false;
  life.next = Clock::now() + life.pause;
  life.path.reset();
  changed_.notify_all();
}

void Fabric::on_changed(const std::shared_ptr<Life>& life, FabricPath& path,
                        FabricPath::State state) {
  std::shared_ptr<FabricPath> ready;
  {
    const std::lock_guard lock(mutex_);
    if (life->path.get() != &path) return;
    if (state == FabricPath::State::kReady) {
      life->ready = true;
      if (!life->awaited) ready = life->path;
      changed_.notify_all();
    } else {
      if (state == FabricPath::State::kClosed) std::erase(lives_, life);
      rest(*life);
    }
  }
  const auto peer = ready == nullptr ? nullptr : life->rail->peer.lock();
  if (peer != nullptr && ready->hand_over()) peer->add(ready);
}

Transport::Connected Fabric::connect(const std::shared_ptr<PathOwner>& peer,
                                     std::span<const std::byte> bytes, Clock::time_point end) {
  const auto offer = decode_fabric_offer(bytes);
  if (!offer) return {{}, "the peer's offer is damaged"};
  std::vector<std::shared_ptr<Life>> lives;
  try {
    for (const auto& rail : rails_to(peer, *offer)) {
      lives.push_back(std::make_shared<Life>());
      lives.back()->rail = rail;
    }
  } catch (const TransferFailure& failure) {
    return {{}, failure.what()};
  }
  if (lives.empty()) return {{}, "no port of ours shares provider and network with one of theirs"};
  {
    const std::lock_guard lock(mutex_);
    lives_.insert(lives_.end(), lives.begin(), lives.end());
  }
  for (const auto& life : lives) begin_path(life);
  std::vector<std::shared_ptr<FabricPath>> ready;
  {
    std::unique_lock lock(mutex_);
    changed_.wait_until(lock, end, [&] {
      return closed_ || std::ranges::all_of(lives, [](const auto& life) {
               return life->ready || life->path == nullptr;
             });
    });
    for (const auto& life : lives) {
      life->awaited = false;
      if (life->ready) ready.push_back(life->path);
    }
  }
  Connected connected;
  for (const auto& path : ready)
    if (path->hand_over()) connected.paths.push_back(path);
  if (connected.paths.empty()) connected.problem = "none of its ports answered in time";
  return connected;
}

Transport::Answer Fabric::answer(const net::EngineId& from, std::span<const std::byte> bytes) {
  const auto question = decode_fabric_question(bytes);
  if (!question) return {Status::kProtocol, {}};
  return target_.answer(from, *question);
}

void Fabric::beat() {
  target_.beat();
  const Clock::time_point now = Clock::now();
  std::vector<std::shared_ptr<Life>> due;
  std::vector<std::shared_ptr<FabricPath>> paths;
  {
    const std::lock_guard lock(mutex_);
    std::erase_if(lives_, [](const auto& life) {
      return life->path == nullptr && life->rail->peer.expired();
    });
    for (const auto& life : lives_) {
      if (life->path != nullptr)
        paths.push_back(life->path);
      else if (now >= life->next && !life->awaited)
        due.push_back(life);
    }
  }
  for (const auto& path : paths) path->beat(now);
  for (const auto& life : due) begin_path(life);
}

void Fabric::link_changed(const net::LinkEvent& event) {
  if (event.change == net::LinkEvent::Change::kAddresses) return;
  const bool up = event.change == net::LinkEvent::Change::kUp;
  std::vector<std::shared_ptr<Life>> due;
  std::vector<std::shared_ptr<FabricPath>> lost;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& life : lives_) {
      if (life->rail->port->interface != event.name) continue;
      if (up && (life->ready || life->awaited)) continue;
      // Also one that has tried to connect while the link was down, and waits to send again.
      if (life->path != nullptr) lost.push_back(life->path);
      if (up) due.push_back(life);
    }
  }
  for (const auto& path : lost) path->link_down();
  for (const auto& life : due) begin_path(life);
}

void Fabric::close() {
  std::vector<std::shared_ptr<Life>> lives;
  {
    const std::lock_guard lock(mutex_);
    if (closed_) return;
    closed_ = true;
    lives.swap(lives_);
    changed_.notify_all();
  }
  if (beat_ != nullptr) site_.loop.remove(beat_id_, beat_->timer());
  links_ = nullptr;
  for (const auto& port : ports_) port->stop();
  for (const auto& life : lives)
    if (const auto path = life->path) path->close(Status::kEngineClosed);
  target_.close();
  memory_.clear();
}

}  // namespace

FabricFound find_fabric() {
  FabricFound found;
  const fabric::Library* library = fabric::load_library(found.problem);
  if (library == nullptr) return found;
  bool in_hardware = false;
  for (const char* provider : {kHardware[0], kHardware[1], kSoftware})
    for (const fabric::Info& info : fabric::find_ports(*library, provider, "")) {
      std::string name = fabric::port_name(*info);
      in_hardware |= provider != kSoftware;
      if (std::ranges::find(found.ports, name) == found.ports.end())
        found.ports.push_back(std::move(name));
    }
  if (!in_hardware) found.problem = kNoDevice;
  return found;
}

std::unique_ptr<Transport> make_fabric(const Site& site) {
  return std::make_unique<Fabric>(site, kSoftware);
}

std::unique_ptr<Transport> make_unconnected_fabric(const Site& site) {
  return std::make_unique<Fabric>(site, kUnconnectedSoftware);
}

}  // namespace inlay::transfer
