#include "tiers.h"

#include <algorithm>
#include <string>
#include <utility>

#include "../core/errors.h"

namespace inlay::sim {

namespace {

// Of one load, as of inlay.cache.Tiers; and of one copy, which is more here, since a block of a
// trace is many of an engine's.
constexpr double kLoadBytes = 4.0 * (1 << 20);
constexpr double kSaveBytes = 1024.0 * (1 << 20);

std::unique_ptr<Tier> make_tier(const TierConfig& config, double block_bytes) {
  return config.blocks == 0 ? nullptr : std::make_unique<Tier>(config, block_bytes);
}

uint32_t batch_of(double bytes, double block_bytes, double most) {
  return static_cast<uint32_t>(std::clamp(bytes / block_bytes, 1.0, most));
}

}  // namespace

Tiers::Tiers(const TiersConfig& config, PageCache& cache, double block_bytes, Tier* store,
             const double& now_s)
    : cache_(cache),
      block_bytes_(block_bytes),
      now_s_(now_s),
      host_(make_tier(config.host, block_bytes)),
      disk_(make_tier(config.disk, block_bytes)),
      tiers_{host_.get(), disk_.get(), store},
      write_back_(config.write),
      costs_(block_bytes, cache.page_tokens()),
      loader_(cache, costs_, batch_of(kLoadBytes, block_bytes, kMaxBatchBlocks), now_s),
      save_blocks_(batch_of(kSaveBytes, block_bytes, kMaxBatchBlocks)) {
  if (disk_ && !host_)
    throw ArgumentError("disk: it is filled from the host's memory, which has room for none of " +
                        std::to_string(config.disk.blocks) + " blocks");
  cache_.tell(&write_back_);
}

void Tiers::poll() {
  for (const auto& [prefetch, blocks] : std::exchange(found_, {}))
    loader_.found(*prefetch, blocks, find_s());
  for (const auto& load : std::exchange(loaded_, {})) loader_.loaded(*load);
  loader_.woken();
}

double Tiers::find_s() const {
  const Tier* asked = tiers_[kStore] != nullptr ? tiers_[kStore] : tiers_[kHost];
  return asked->config().latency_s;
}

void Tiers::found(std::shared_ptr<Prefetch> prefetch) {
  if (prefetch->sequence == nullptr) return;  // it has ended meanwhile
  const BlockNames& names = prefetch->sequence->names;
  uint32_t end = prefetch->first;
  while (end < prefetch->last && nearest(names[end]) != kNoTier) ++end;
  const uint32_t blocks = end - prefetch->first;
  found_.emplace_back(std::move(prefetch), blocks);
}

uint8_t Tiers::nearest(Digest name) const {
  for (uint8_t tier = 0; tier < kNumTiers; ++tier)
    if (tiers_[tier] != nullptr && tiers_[tier]->has(name)) return tier;
  return kNoTier;
}

uint64_t Tiers::recompute_ns() const {
  return static_cast<uint64_t>(1e9 * costs_.prefill_s(cache_.page_tokens()));
}

double Tiers::latency_s(std::span<const Move> moves) const {
  double longest = 0.0;
  for (const Move& move : moves) longest = std::max(longest, tiers_[move.tier]->config().latency_s);
  return longest;
}

bool Tiers::begin(Work work, std::vector<Move>& moves) {
  moves.clear();
  if (busy_[work]) return false;
  switch (work) {
    case kLoad:
      busy_[work] = begin_load(moves);
      break;
    case kSave:
      busy_[work] = begin_save(moves);
      break;
    default:
      busy_[work] = begin_demotion(moves);
  }
  return busy_[work];
}

void Tiers::end(Work work) {
  busy_[work] = false;
  switch (work) {
    case kLoad:
      return end_load();
    case kSave:
      return end_save();
    default:
      return end_demotion();
  }
}

bool Tiers::begin_load(std::vector<Move>& moves) {
  LoadJob* load = loader_.next();
  if (load == nullptr) return false;
  load->begun = true;
  load->begun_s = now_s_;
  for (auto& names : read_) names.clear();
  for (const Digest name : load->names) {
    const uint8_t tier = nearest(name);
    load->tiers.push_back(tier);
    if (tier != kNoTier) read_[tier].push_back(name);
  }
  for (uint8_t tier = 0; tier < kNumTiers; ++tier) {
    if (read_[tier].empty()) continue;
    tiers_[tier]->begin_read(read_[tier], now_s_);
    moves.push_back(
        {static_cast<TierName>(tier), static_cast<double>(read_[tier].size()) * block_bytes_});
  }
  return true;
}

void Tiers::end_load() {
  std::unique_ptr<LoadJob> load = loader_.take_next();
  load->seconds = now_s_ - load->begun_s;
  for (uint8_t tier = 0; tier < kNumTiers; ++tier) {
    if (read_[tier].empty()) continue;
    tiers_[tier]->end_read(read_[tier]);
    counts_[tier].read_blocks += read_[tier].size();
  }
  // What is read from a disk is in memory again.
  promoted_.clear();
  for (const Digest name : read_[kDisk]) promoted_.push_back({name, kNoBlock});
  if (!promoted_.empty()) {
    evicted_.clear();
    host_->put(promoted_, recompute_ns(), now_s_, evicted_);
    demote(evicted_);
  }
  loaded_.push_back(std::move(load));
}

bool Tiers::begin_save(std::vector<Move>& moves) {
  if (write_back_.waits_for_eviction()) {
    const std::size_t margin = std::max<std::size_t>(save_blocks_, cache_.num_pages() / 8);
    if (cache_.num_free() < margin) {
      cache_.coldest(margin, coldest_);
      for (const uint32_t block : coldest_) write_back_.cooling(block);
    }
  }
  write_back_.take(save_blocks_, save_.blocks);
  if (save_.blocks.empty()) return false;
  for (auto& blocks : save_.to) blocks.clear();
  for (const Unsaved& block : save_.blocks) {
    cache_.pin(block.block);
    for (uint8_t tier = 0; tier < kNumTiers; ++tier) {
      // Without a store, what is to survive is on the disk at once; else it comes there from
      // memory.
      const bool wanted = tier != kDisk || !has_store();
      if (wanted && tiers_[tier] != nullptr && !tiers_[tier]->has(block.name))
        save_.to[tier].push_back({block.name, block.parent});
    }
  }
  for (uint8_t tier = 0; tier < kNumTiers; ++tier)
    if (!save_.to[tier].empty())
      moves.push_back(
          {static_cast<TierName>(tier), static_cast<double>(save_.to[tier].size()) * block_bytes_});
  return true;
}

void Tiers::end_save() {
  for (const Unsaved& block : save_.blocks) cache_.unpin(block.block);
  for (uint8_t tier = kNumTiers; tier-- > 0;) {  // the disk first: what leaves memory may be there
    if (save_.to[tier].empty()) continue;
    evicted_.clear();
    tiers_[tier]->put(save_.to[tier], recompute_ns(), now_s_, evicted_);
    counts_[tier].written_blocks += save_.to[tier].size();
    if (tier == kHost) demote(evicted_);
  }
}

// What leaves the host's memory goes to the disk, unless that is too slow for it.
void Tiers::demote(std::span<const Digest> evicted) {
  if (disk_ == nullptr) return;
  for (const Digest name : evicted)
    if (leaving_.size() < kMaxBatchBlocks && !disk_->has(name)) leaving_.push_back(name);
}

bool Tiers::begin_demotion(std::vector<Move>& moves) {
  if (leaving_.empty()) return false;
  demoted_.clear();
  for (const Digest name : leaving_) demoted_.push_back({name, kNoBlock});
  leaving_.clear();
  moves.push_back({kDisk, static_cast<double>(demoted_.size()) * block_bytes_});
  return true;
}

void Tiers::end_demotion() {
  evicted_.clear();
  disk_->put(demoted_, 0, now_s_, evicted_);
  counts_[kDisk].written_blocks += demoted_.size();
}

void Tiers::forget() {
  if (busy_[kLoad])
    for (uint8_t tier = 0; tier < kNumTiers; ++tier)
      if (!read_[tier].empty()) tiers_[tier]->end_read(read_[tier]);
  if (busy_[kSave])
    for (const Unsaved& block : save_.blocks) cache_.unpin(block.block);
  busy_ = {};
  for (const auto& load : std::exchange(loaded_, {})) loader_.loaded(*load);
  loader_.stop();
  found_.clear();
  leaving_.clear();
  for (Tier* tier : {host_.get(), disk_.get()})
    if (tier != nullptr) tier->forget();
}

void Tiers::audit() const {
  for (const Tier* tier : {host_.get(), disk_.get()})
    if (tier != nullptr) tier->audit();
}

}  // namespace inlay::sim
