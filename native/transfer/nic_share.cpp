#include "nic_share.h"

#include <algorithm>

#include "../core/errors.h"
#include "../net/interfaces.h"

namespace inlay::transfer {

namespace {

using net::Clock;

// The card over which two addresses reach each other; empty where nothing leaves this machine.
std::string card_between(const std::string& local, const std::string& remote) {
  if (local.starts_with("127.") || local == "::1") return {};
  const auto own = net::interface_addresses();
  const auto card_of = [&](const std::string& host) {
    const auto found = std::ranges::find(own, host, &net::InterfaceAddress::host);
    return found == own.end() ? std::string() : found->interface;
  };
  return card_of(remote).empty() ? card_of(local) : std::string();
}

}  // namespace

void NicShare::join(std::weak_ptr<SharedLane> lane) {
  const std::lock_guard lock(mutex_);
  std::erase_if(lanes_, [](const auto& held) { return held.expired(); });
  lanes_.push_back(std::move(lane));
}

uint64_t NicShare::grant(uint64_t wanted) {
  const Clock::time_point now = Clock::now();
  const uint64_t granted = ledger_.grant(wanted, now);
  if (!beats_.load(std::memory_order_relaxed) && !beats_.exchange(true))
    loop_.wake_by(now + net::kBeat);
  if (granted == 0 && !holds_.exchange(true)) loop_.wake_by(ledger_.next());
  return granted;
}

std::vector<std::shared_ptr<SharedLane>> NicShare::lanes() {
  std::vector<std::shared_ptr<SharedLane>> living;
  const std::lock_guard lock(mutex_);
  // Each is the first to ask in its turn.
  if (!lanes_.empty()) std::ranges::rotate(lanes_, lanes_.begin() + 1);
  for (const auto& held : lanes_)
    if (auto lane = held.lock()) living.push_back(std::move(lane));
  return living;
}

Clock::time_point NicShare::tick(Clock::time_point now) {
  if (now >= next_beat_ && beats_.exchange(false)) {
    net::Load sum;
    for (const auto& lane : lanes()) {
      const net::Load load = lane->take_load(direction_);
      sum.queued += load.queued;
      sum.moved += load.moved;
    }
    ledger_.moved(sum.moved);
    ledger_.beat(sum.queued, now);
    next_beat_ = now + net::kBeat;
    if (sum.queued > 0 || sum.moved > 0) beats_.store(true);
  }
  if (holds_.exchange(false))
    for (const auto& lane : lanes()) lane->resume();
  const Clock::time_point beat = beats_.load() ? next_beat_ : Clock::time_point::max();
  return holds_.load() ? std::min(beat, ledger_.next()) : beat;
}

NicShares::NicShares(net::Loop& loop, NicShareOptions options)
    : loop_(loop), options_(std::move(options)) {}

NicShare* NicShares::find(const net::Descriptor& socket, net::Direction direction) {
  if (options_.directory.empty()) return nullptr;
  const std::string card = card_between(net::host_of(net::local_address(socket)),
                                        net::host_of(net::remote_address(socket)));
  if (card.empty()) return nullptr;
  const std::lock_guard lock(mutex_);
  std::unique_ptr<NicShare>& share = shares_[{card, direction}];
  if (share == nullptr) {
    const auto known = options_.bandwidths.find(card);
    const double capacity = known == options_.bandwidths.end() ? 0 : known->second;
    try {
      share = std::make_unique<NicShare>(
          loop_,
          net::FairnessOptions{options_.directory, card, direction, options_.weight, capacity});
    } catch (const ArgumentError&) {  // a ledger that others could write, or of another version
    } catch (const ResourceError&) {
    }
  }
  return share.get();
}

Clock::time_point NicShares::tick(Clock::time_point now) {
  std::vector<NicShare*> shares;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [key, share] : shares_)
      if (share != nullptr) shares.push_back(share.get());
  }
  Clock::time_point next = Clock::time_point::max();
  for (NicShare* share : shares) next = std::min(next, share->tick(now));
  return next;
}

}  // namespace inlay::transfer
