// The tiers behind one instance's device: its host's memory, its disk, and the store that all
// share; what is copied there and loaded from there. What moves is data for whoever owns the links.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "load_costs.h"
#include "loader.h"
#include "page_cache.h"
#include "tier.h"
#include "write_back.h"

namespace inlay::sim {

struct TiersConfig {
  TierConfig host;
  TierConfig disk;
  WriteWhen write = WriteWhen::kThrough;
};

// Blocks that an instance moved from and to a tier.
struct TierCounts {
  uint64_t read_blocks = 0;
  uint64_t written_blocks = 0;
};

class Tiers {
 public:
  // What an instance does at one time, once each.
  enum Work : uint8_t { kLoad, kSave, kDemote, kNumWorks };
  // Bytes from or to a tier; a disk is read into the host's memory.
  struct Move {
    TierName tier;
    double bytes;
  };

  // `store`: null where there is none; `now_s`: the time, whenever something is called.
  Tiers(const TiersConfig& config, PageCache& cache, double block_bytes, Tier* store,
        const double& now_s);
  Tiers(const Tiers&) = delete;
  Tiers& operator=(const Tiers&) = delete;

  Loader& loader() { return loader_; }
  LoadCosts& costs() { return costs_; }
  const LoadCosts& costs() const { return costs_; }
  bool has_store() const { return tiers_[kStore] != nullptr; }
  Tier* tier(TierName name) { return tiers_[name]; }

  // Before a step's scheduling: takes the results of loads and look-ups.
  void poll();
  // After it: what may be under way during the step.
  void start() { loader_.start(); }
  // Look-ups that are to be made, and how long one takes.
  std::vector<std::shared_ptr<Prefetch>> take_finds() { return loader_.take_finds(); }
  double find_s() const;
  // One is answered; poll() takes it.
  void found(std::shared_ptr<Prefetch> prefetch);

  bool busy(Work work) const { return busy_[work]; }
  // Begins work, if there is some and none is under way; false: it has not begun. `moves` may be
  // empty: nothing is there that could be loaded, or all is there that was to be copied.
  bool begin(Work work, std::vector<Move>& moves);
  // All has moved.
  void end(Work work);
  double latency_s(std::span<const Move> moves) const;

  // All is gone, and nothing is under way any more.
  void forget();

  const TierCounts& counts(TierName name) const { return counts_[name]; }
  // Blocks whose pages were needed before they were copied.
  uint64_t lost_blocks() const { return write_back_.lost(); }
  void audit() const;

 private:
  static constexpr std::size_t kMaxBatchBlocks = 32;
  struct Save {
    std::vector<Unsaved> blocks;
    std::array<std::vector<NamedBlock>, kNumTiers> to;
  };

  bool begin_load(std::vector<Move>& moves);
  bool begin_save(std::vector<Move>& moves);
  bool begin_demotion(std::vector<Move>& moves);
  void end_load();
  void end_save();
  void end_demotion();
  void demote(std::span<const Digest> evicted);
  uint8_t nearest(Digest name) const;
  uint64_t recompute_ns() const;

  PageCache& cache_;
  double block_bytes_;
  const double& now_s_;
  std::unique_ptr<Tier> host_;
  std::unique_ptr<Tier> disk_;
  std::array<Tier*, kNumTiers> tiers_;
  WriteBack write_back_;
  LoadCosts costs_;
  Loader loader_;
  std::size_t save_blocks_;  // of one copy, which keep their pages meanwhile

  std::array<bool, kNumWorks> busy_{};
  std::vector<std::unique_ptr<LoadJob>> loaded_;
  std::vector<std::pair<std::shared_ptr<Prefetch>, uint32_t>> found_;
  Save save_;
  std::vector<Digest> leaving_;      // the host, for the disk
  std::vector<NamedBlock> demoted_;  // that are on their way there
  std::vector<Digest> evicted_;
  std::vector<uint32_t> coldest_;
  std::vector<NamedBlock> promoted_;
  std::array<std::vector<Digest>, kNumTiers> read_;
  std::array<TierCounts, kNumTiers> counts_{};
};

}  // namespace inlay::sim
