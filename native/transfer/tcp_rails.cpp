#include "tcp_rails.h"

#include <arpa/inet.h>

#include <algorithm>
#include <sstream>

#include "peer.h"
#include "tcp.h"
#include "topology.h"

namespace inlay::transfer {

namespace {

// Acknowledgements come within 4 ms on a loaded link.
constexpr std::chrono::milliseconds kLookEvery(4);
// Without a rail to change to, whether the peer's machine is there is all that is of interest.
constexpr std::chrono::milliseconds kHearEvery(500);
// When nothing came from it for so long while something was under way, it is given up.
constexpr std::chrono::seconds kVanishedAfter(10);
constexpr std::size_t kMaxRails = 16;

bool same_network(const RailEnd& end, const std::string& host) {
  std::array<unsigned char, 16> a{};
  std::array<unsigned char, 16> b{};
  const int family = end.host.find(':') == std::string::npos ? AF_INET : AF_INET6;
  if (inet_pton(family, end.host.c_str(), a.data()) != 1 ||
      inet_pton(family, host.c_str(), b.data()) != 1)
    return false;
  for (int bit = 0; bit < end.prefix; ++bit) {
    const auto byte = static_cast<std::size_t>(bit / 8);
    if (((a[byte] ^ b[byte]) >> (7 - bit % 8)) & 1) return false;
  }
  return true;
}

}  // namespace

std::vector<RailEnd> rail_ends() {
  std::vector<RailEnd> ends;
  for (const Nic& nic : read_topology().nics) {
    // Tunnels and bridges, too: the handshake tells whether the peer is at the other end.
    const bool carries = nic.kind != Nic::Kind::kLoopback && nic.kind != Nic::Kind::kRdma;
    if (!carries || !nic.up || nic.member) continue;
    for (const Nic::Address& address : nic.addresses)
      if (address.host.find('%') == std::string::npos)  // an IPv6 address of one link only
        ends.push_back({address.host, address.prefix, nic.name, nic.bandwidth});
  }
  return ends;
}

TcpRails::TcpRails(net::Loop& loop, const Site& site, TcpTransport& tcp,
                   const std::shared_ptr<Peer>& peer, std::shared_ptr<Lane> first,
                   const std::string& offer)
    : loop_(loop), site_(site), tcp_(tcp), peer_(peer) {
  const std::string local = net::host_of(net::local_address(first->socket()));
  const std::string remote = net::remote_address(first->socket());
  const TimeNs now = time_of(Clock::now());
  // Connection and handshake take three round trips.
  const auto round_trip = net::tcp_state(first->socket()).round_trip;
  config_.connect_timeout += 6 * std::chrono::nanoseconds(round_trip).count();
  const std::vector<RailEnd> ends = rail_ends();
  const auto own = std::ranges::find(ends, local, &RailEnd::host);
  rails_.push_back(std::make_unique<One>(One{local,
                                             remote,
                                             own == ends.end() ? "" : own->nic,
                                             own == ends.end() ? 0 : own->bandwidth,
                                             Rail(now),
                                             {},
                                             {}}));
  rails_.front()->lanes[0] = std::move(first);
  if (own == ends.end()) return;  // loopback: there is no second way
  std::vector<std::string> used{own->nic};
  std::istringstream lines(offer);
  std::string address;
  double bandwidth = 0;
  while (lines >> address >> bandwidth && rails_.size() < kMaxRails) {
    if (address.rfind(':') == std::string::npos || address == remote) continue;
    for (const RailEnd& end : ends) {
      if (!same_network(end, net::host_of(address)) || end.host == net::host_of(address)) continue;
      if (std::ranges::find(used, end.nic) != used.end()) continue;
      used.push_back(end.nic);
      const double slower = end.bandwidth > 0 && bandwidth > 0 ? std::min(end.bandwidth, bandwidth)
                                                               : std::max(end.bandwidth, bandwidth);
      rails_.push_back(
          std::make_unique<One>(One{end.host, address, end.nic, slower, Rail(now), {}, {}}));
      break;
    }
  }
}

void TcpRails::start(Clock::time_point now) {
  const auto peer = peer_.lock();
  if (peer == nullptr) return;
  peer->watch_lanes([weak = weak_from_this(), &loop = loop_](const Path& path) {
    loop.post([weak, lost = &path] {
      if (const auto rails = weak.lock()) rails->lane_lost(lost);
    });
  });
  peer->add(rails_.front()->lanes[0]);
  for (const auto& rail : rails_) {
    rail->health = Rail(time_of(now), config_);
    dial_missing(*rail);
  }
  loop_.wake_by(now + kLookEvery);
}

void TcpRails::wait_started(Clock::time_point end) {
  // A peer that is lost meanwhile starts no more, and nobody tells.
  constexpr std::chrono::milliseconds kLook(5);
  std::unique_lock lock(mutex_);
  while (!has_started_ && !over() && Clock::now() < end)
    started_.wait_until(lock, std::min(end, Clock::now() + kLook));
}

void TcpRails::note_started() {
  const bool all = std::ranges::none_of(
      rails_, [](const auto& rail) { return rail->health.state() == RailState::kConnecting; });
  if (!all) return;
  const std::lock_guard lock(mutex_);
  has_started_ = true;
  started_.notify_all();
}

bool TcpRails::over() const {
  const auto peer = peer_.lock();
  return peer == nullptr || !peer->alive();
}

void TcpRails::close() {
  for (const auto& rail : rails_)
    for (auto& dial : rail->dials)
      if (dial != nullptr) std::exchange(dial, nullptr)->cancel();
}

bool TcpRails::others_ready(const One& rail) const {
  return std::ranges::any_of(rails_, [&](const auto& other) {
    return other.get() != &rail && other->health.state() == RailState::kReady;
  });
}

void TcpRails::tell(One& rail, RailEvent event) {
  const RailActions actions = rail.health.on(event, time_of(Clock::now()), others_ready(rail));
  if (actions.close) {
    for (auto& dial : rail.dials) {
      if (dial == nullptr) continue;
      if (dial->reached()) heard_ = Clock::now();
      std::exchange(dial, nullptr)->cancel();
    }
    // A lane that works stays when another one could not be made.
    const bool only_dials = event == RailEvent::kRefused || event == RailEvent::kTick;
    for (auto& lane : rail.lanes)
      if (lane != nullptr && !only_dials)
        std::exchange(lane, nullptr)->shut(Status::kPeerUnreachable);
  }
  if (actions.connect) dial_missing(rail);
  if (actions.announce) watch_lanes();
  if (const TimeNs next = rail.health.next_tick(); next != Rail::kNever)
    loop_.wake_by(Clock::time_point(std::chrono::nanoseconds(next)));
  note_started();
}

void TcpRails::dial_missing(One& rail) {
  for (const auto kind : {net::LaneKind::kSmall, net::LaneKind::kBulk})
    if (rail.lanes[static_cast<std::size_t>(kind)] == nullptr) dial(rail, kind);
}

void TcpRails::dial(One& rail, net::LaneKind kind) {
  const auto peer = peer_.lock();
  if (peer == nullptr || !peer->alive()) return;
  net::Hello hello;
  hello.lane = kind;
  hello.engine = site_.engine;
  hello.connection = peer->next_connection();
  net::fill_random(hello.nonce);
  rail.dials[static_cast<std::size_t>(kind)] = net::Dial::start(
      loop_, rail.local, rail.remote, hello, site_.token,
      [weak = weak_from_this(), &rail, kind, connection = hello.connection](auto result) {
        if (const auto rails = weak.lock())
          rails->dialed(rail, kind, connection, std::move(result));
      });
}

void TcpRails::dialed(One& rail, net::LaneKind kind, uint64_t connection,
                      net::Dial::Result result) {
  const auto at = static_cast<std::size_t>(kind);
  rail.dials[at] = nullptr;
  const auto peer = peer_.lock();
  if (peer == nullptr || !peer->alive()) return;
  const bool made = result.socket.valid() && result.target == peer->engine;
  if (!made) {
    // Nobody is left at the address, or another process is.
    const bool gone = result.refused || result.socket.valid();
    if (gone && peer->lanes().empty()) return peer->lose(Status::kPeerDied, true);
    const bool ready = rail.health.state() == RailState::kReady;
    return tell(rail, ready ? RailEvent::kError : RailEvent::kRefused);
  }
  auto lane = tcp_.make_lane(peer, std::move(result.socket), connection, kind, rail.bandwidth);
  rail.lanes[at] = lane;
  peer->add_lane(lane);
  peer->add(lane);
  const bool all = std::ranges::all_of(rail.lanes, [](const auto& one) { return one != nullptr; });
  if (all && rail.health.state() != RailState::kReady) tell(rail, RailEvent::kConnected);
  watch_lanes();
}

void TcpRails::lane_lost(const Path* path) {
  const auto peer = peer_.lock();
  if (peer == nullptr || !peer->alive()) return note_started();
  for (const auto& rail : rails_)
    for (std::size_t at = 0; at < rail->lanes.size(); ++at) {
      if (rail->lanes[at].get() != path) continue;
      rail->lanes[at] = nullptr;
      // The peer shut one, as it may, or the rail is gone.
      if (rail->lanes[1 - at] != nullptr && rail->health.state() == RailState::kReady)
        dial(*rail, static_cast<net::LaneKind>(at));
      else
        tell(*rail, RailEvent::kError);
      return;
    }
}

void TcpRails::link_changed(const net::LinkEvent& event) {
  if (event.change == net::LinkEvent::Change::kAddresses) return;
  const bool up = event.change == net::LinkEvent::Change::kUp;
  for (const auto& rail : rails_)
    if (rail->nic == event.name) tell(*rail, up ? RailEvent::kLinkUp : RailEvent::kLinkDown);
}

// Lanes are looked at while something is under way, where another rail could take it over.
void TcpRails::watch_lanes() {
  for (const auto& rail : rails_)
    for (const auto& lane : rail->lanes)
      if (lane != nullptr) lane->watch_health(others_ready(*rail) ? kLookEvery : kHearEvery);
}

// Lanes that cannot be made are no sign of life, whatever transport the bytes take.
Clock::time_point TcpRails::hear(Clock::time_point now) {
  if (now < hear_at_) return hear_at_;
  const auto peer = peer_.lock();
  if (peer == nullptr || !peer->alive()) return Clock::time_point::max();
  const bool idle = peer->dispatch().batches().empty();
  bool heard = idle || heard_ == Clock::time_point{};
  for (const auto& rail : rails_)
    for (const auto& lane : std::array(rail->lanes))
      if (!idle && lane != nullptr) heard |= lane->hear();
  if (heard) heard_ = idle ? Clock::time_point{} : now;
  if (idle) return Clock::time_point::max();
  if (now - heard_ >= kVanishedAfter) {
    peer->lose(Status::kPeerUnreachable, false);
    return Clock::time_point::max();
  }
  return hear_at_ = now + kHearEvery;
}

Clock::time_point TcpRails::tick(Clock::time_point now) {
  Clock::time_point next = hear(now);
  for (const auto& rail : rails_) {
    if (rail->health.next_tick() <= time_of(now)) tell(*rail, RailEvent::kTick);
    if (rail->health.state() == RailState::kReady && others_ready(*rail)) {
      bool silent = false;
      for (const auto& lane : rail->lanes) {
        if (lane == nullptr) continue;
        const Lane::Health health = lane->look(now);
        if (health.busy) next = std::min(next, now + kLookEvery);
        silent |=
            health.busy && is_silent(health.unacknowledged, health.silent_ns, health.round_trip_ns);
      }
      if (silent) tell(*rail, RailEvent::kSilence);
    }
    for (const auto& lane : std::array(rail->lanes))
      if (lane != nullptr) next = std::min(next, lane->beat(now));
    if (const TimeNs at = rail->health.next_tick(); at != Rail::kNever)
      next = std::min(next, Clock::time_point(std::chrono::nanoseconds(at)));
  }
  return next;
}

}  // namespace inlay::transfer
