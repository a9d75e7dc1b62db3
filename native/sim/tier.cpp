#include "tier.h"

#include <cmath>

#include "../core/errors.h"

namespace inlay::sim {

namespace {

uint64_t ns(double seconds) { return static_cast<uint64_t>(seconds * 1e9); }

}  // namespace

Tier::Tier(const TierConfig& config, double block_bytes)
    : config_(config),
      block_bytes_(static_cast<uint64_t>(block_bytes)),
      policy_(store::make_eviction_policy(config.eviction)) {
  if (!policy_)
    throw ArgumentError("eviction: must be lru, s3fifo or cost, got " + config.eviction);
  for (const double rate : {config.read_bytes_per_s, config.write_bytes_per_s})
    if (!(rate > 0.0))
      throw ArgumentError("tier: reads and writes must be above 0 bytes per second, got " +
                          std::to_string(rate));
  if (!(config.latency_s >= 0.0 && std::isfinite(config.latency_s)))
    throw ArgumentError("tier: latency_s must be finite and not negative, got " +
                        std::to_string(config.latency_s));
  if (!(block_bytes >= 1.0))
    throw ArgumentError("token_bytes: blocks of tiers must have bytes, got " +
                        std::to_string(block_bytes));
}

std::size_t Tier::Hash::operator()(Digest name) const {
  uint64_t word = name.low + 0x9e3779b97f4a7c15 * (name.high + 1);
  word = (word ^ word >> 30) * 0xbf58476d1ce4e5b9;
  word = (word ^ word >> 27) * 0x94d049bb133111eb;
  return word ^ word >> 31;
}

store::ObjectId Tier::find(Digest name) const {
  const auto found = ids_.find(name);
  return found == ids_.end() ? store::kNoObject : found->second;
}

void Tier::begin_read(std::span<const Digest> names, double now_s) {
  hit_.clear();
  for (const Digest name : names) {
    const store::ObjectId id = ids_.at(name);
    ++readers_[id];
    hit_.push_back(id);
  }
  if (config_.hits) policy_->hit(hit_, ns(now_s));
}

void Tier::end_read(std::span<const Digest> names) {
  for (const Digest name : names) --readers_[ids_.at(name)];
}

void Tier::put(std::span<const NamedBlock> blocks, uint64_t recompute_ns, double now_s,
               std::vector<Digest>& evicted) {
  newcomers_.clear();
  for (const NamedBlock& block : blocks) {
    if (has(block.name)) continue;
    // What they follow does not go for them, and they do not yet.
    const store::ObjectId parent = find(block.parent);
    if (parent != store::kNoObject) ++readers_[parent];
    if (!make_room(now_s, evicted)) {
      if (parent != store::kNoObject) --readers_[parent];
      continue;
    }
    const store::ObjectId id = unused_.back();
    unused_.pop_back();
    names_[id] = block.name;
    ids_.emplace(block.name, id);
    newcomers_.push_back({id, parent, Hash{}(block.name), block_bytes_, recompute_ns});
    tell(block.name, true);
  }
  for (const store::Newcomer& newcomer : newcomers_)
    if (newcomer.parent != store::kNoObject) --readers_[newcomer.parent];
  policy_->add(newcomers_, ns(now_s));
}

bool Tier::make_room(double now_s, std::vector<Digest>& evicted) {
  if (ids_.size() < config_.blocks) {
    if (unused_.empty()) {
      unused_.push_back(static_cast<store::ObjectId>(names_.size()));
      names_.emplace_back();
      readers_.push_back(0);
    }
    return true;
  }
  const store::ObjectId id =
      policy_->victim(ns(now_s), [this](store::ObjectId one) { return readers_[one] != 0; });
  if (id == store::kNoObject) return false;
  const Digest name = names_[id];
  policy_->evict(id, Hash{}(name));
  ids_.erase(name);
  unused_.push_back(id);
  evicted.push_back(name);
  tell(name, false);
  return true;
}

void Tier::tell(Digest name, bool stored) {
  if (name.high == 0) changes_.push_back({name, stored});
}

void Tier::forget() {
  for (std::size_t id = 0; id < names_.size(); ++id) {
    if (find(names_[id]) != id) continue;
    policy_->remove(static_cast<store::ObjectId>(id));
    ids_.erase(names_[id]);
    unused_.push_back(static_cast<store::ObjectId>(id));
    readers_[id] = 0;
  }
  changes_.clear();
}

void Tier::audit() const {
  if (ids_.size() > config_.blocks || policy_->size() != ids_.size() ||
      ids_.size() + unused_.size() != names_.size())
    throw EngineError("tier: " + std::to_string(ids_.size()) + " blocks, " +
                      std::to_string(policy_->size()) + " in the policy, " +
                      std::to_string(unused_.size()) + " of " + std::to_string(names_.size()) +
                      " ids unused, room for " + std::to_string(config_.blocks));
  for (const auto& [name, id] : ids_)
    if (!(names_[id] == name) || !policy_->contains(id))
      throw EngineError("tier: a block has the id of another one");
}

}  // namespace inlay::sim
