// What instances copy to the tiers behind them and load from there: hosts' memory and disks have
// links of their own, what goes to the store and comes from it shares those of the network.
#include <algorithm>
#include <limits>
#include <utility>

#include "world.h"

namespace inlay::sim {

namespace {

constexpr double kUnlimited = std::numeric_limits<double>::infinity();

}  // namespace

void World::add_ends(Place& here) {
  const InstanceConfig& config = here.instance.config();
  here.end = links_.add_end(config.out_bytes_per_s, config.in_bytes_per_s);
  Tiers* tiers = here.instance.tiers();
  if (tiers == nullptr) return;
  if (flow_owners_.empty()) {  // the first one that has tiers
    flow_owners_.resize(1);
    device_end_ = links_.add_end(kUnlimited, kUnlimited);
    if (store_)
      store_end_ = links_.add_end(config_.store.read_bytes_per_s, config_.store.write_bytes_per_s);
  }
  const auto add = [this, tiers](TierName name) {
    if (tiers->tier(name) == nullptr) return uint16_t{0};
    const TierConfig& tier = tiers->tier(name)->config();
    return links_.add_end(tier.read_bytes_per_s, tier.write_bytes_per_s);
  };
  here.host_end = add(kHost);
  here.disk_end = add(kDisk);
}

// What tiers have of requests that are new here is looked up.
void World::ask_tiers(uint16_t slot) {
  Place& here = place(slot);
  Tiers& tiers = *here.instance.tiers();
  for (std::shared_ptr<Prefetch>& prefetch : tiers.take_finds()) {
    here.finds.push_back({now_s_ + tiers.find_s(), std::move(prefetch)});
    at(here.finds.back().answered_s, kMoved, slot);
  }
}

// What may be under way, begins.
void World::begin_works(uint16_t slot) {
  ask_tiers(slot);
  Tiers& tiers = *place(slot).instance.tiers();
  for (const Tiers::Work work : {Tiers::kLoad, Tiers::kSave, Tiers::kDemote}) {
    if (tiers.begin(work, moves_)) open_flows(slot, work);
  }
}

void World::open_flows(uint16_t slot, Tiers::Work work) {
  Place& here = place(slot);
  Moving& moving = here.moving[work];
  moving.flows.clear();
  moving.left = moves_.size();
  moving.latency_s = here.instance.tiers()->latency_s(moves_);
  moving.over_s = kUnlimited;
  if (moves_.empty()) return call_ends(slot, moving);
  links_.advance(now_s_);
  for (const Tiers::Move& move : moves_) {
    // Where it is stored, and the other end.
    uint16_t there = here.host_end;
    uint16_t other = device_end_;
    if (move.tier == kDisk) {
      there = here.disk_end;
      if (work != Tiers::kSave) other = here.host_end;
    } else if (move.tier == kStore) {
      there = store_end_;
      other = here.end;
    }
    const Links::Flow flow =
        work == Tiers::kLoad ? links_.open(there, other) : links_.open(other, there);
    flow_owners_.resize(std::max<std::size_t>(flow_owners_.size(), flow + 1));
    flow_owners_[flow] = {true, slot, work};
    moving.flows.push_back(flow);
    links_.put(flow, move.bytes);
  }
}

// Whether a flow that has nothing left was one from or to a tier.
bool World::moved(Links::Flow flow) {
  if (flow >= flow_owners_.size() || !flow_owners_[flow].open) return false;
  const Owner owner = std::exchange(flow_owners_[flow], {});
  links_.close(flow);
  Moving& moving = place(owner.slot).moving[owner.work];
  std::erase(moving.flows, flow);
  if (--moving.left == 0) call_ends(owner.slot, moving);
  return true;
}

void World::call_ends(uint16_t slot, Moving& moving) {
  moving.over_s = now_s_ + moving.latency_s;
  at(moving.over_s, kMoved, slot);
}

// Takes what is over by now. Loads and look-ups are looked at by the next step, which begins then
// if none runs.
void World::settle(uint16_t slot) {
  Place& here = place(slot);
  Tiers& tiers = *here.instance.tiers();
  bool told = tiers.loader().wake_s() <= now_s_;
  for (; !here.finds.empty() && here.finds.front().answered_s <= now_s_; here.finds.pop_front()) {
    tiers.found(std::move(here.finds.front().prefetch));
    told = true;
  }
  for (const Tiers::Work work : {Tiers::kLoad, Tiers::kSave, Tiers::kDemote}) {
    if (!tiers.busy(work) || here.moving[work].over_s > now_s_) continue;
    tiers.end(work);
    // A copy that is made lets its pages go.
    const bool waited = here.instance.scheduler().num_waiting() != 0 || !here.crowded.empty();
    told = told || work == Tiers::kLoad || (work == Tiers::kSave && waited);
  }
  tell_store_blocks();
  if (told) kick(slot);
  // Else when a step begins, which has pages before the next copy keeps some.
  if (!told || here.instance.busy()) begin_works(slot);
}

void World::stop_works(uint16_t slot) {
  Place& here = place(slot);
  Tiers* tiers = here.instance.tiers();
  if (tiers == nullptr) return;
  links_.advance(now_s_);
  for (Moving& moving : here.moving) {
    for (const Links::Flow flow : moving.flows) {
      links_.close(flow);
      flow_owners_[flow] = {};
    }
    moving.flows.clear();
  }
  here.finds.clear();
  tiers->forget();
  tell_store_blocks();
}

}  // namespace inlay::sim
