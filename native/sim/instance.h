// One engine: it works in steps, each of which computes what its scheduler chose.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "../cluster/timing.h"
#include "page_cache.h"
#include "scheduler.h"
#include "sequence.h"
#include "step_log.h"
#include "step_time.h"
#include "tiers.h"

namespace inlay::sim {

struct InstanceConfig {
  uint32_t num_pages = 1;
  uint32_t page_tokens = 512;
  SchedulerConfig scheduler;
  StepTime step_time;
  double noise = 0.0;    // relative standard deviation of a step's time
  uint32_t experts = 0;  // of a layer, and how many of them a token chooses; 0: none
  uint32_t experts_per_token = 0;
  double token_bytes = 0.0;  // of KV
  uint32_t layers = 1;
  double out_bytes_per_s = 0.0;  // of its links; 0: it has none
  double in_bytes_per_s = 0.0;
  TiersConfig tiers;
};

using cluster::StepSample;

// How loaded an instance is: the numbers of core.instance_messages.LoadReport.
struct Load {
  uint32_t waiting = 0;
  uint32_t running = 0;
  uint32_t receiving = 0;
  uint64_t prefill_tokens = 0;
  uint64_t context_tokens = 0;
  uint32_t pages_free = 0;
  uint32_t pages_cached = 0;
  double find_s = -1.0;  // to ask the store, and to load a block from it; -1: there is none
  double load_block_s = -1.0;
};

class Instance {
 public:
  // `store`: that it shares with others, or null; `now_s`: the time, whenever something is called.
  Instance(const InstanceConfig& config, uint64_t seed, uint64_t slot, Tier* store,
           const double& now_s);

  const InstanceConfig& config() const { return config_; }
  PageCache& cache() { return cache_; }
  Scheduler& scheduler() { return scheduler_; }
  StepLog& log() { return log_; }
  // Behind the device; null: there are none.
  Tiers* tiers() { return tiers_.get(); }
  const Tiers* tiers() const { return tiers_.get(); }

  // Begins a step and returns its seconds; 0 where nothing can run.
  double begin();
  bool busy() const { return !chunks_.empty(); }
  std::span<const Chunk> chunks() const { return chunks_; }
  const StepSample& step() const { return step_; }
  // The step is over; returns its chunks, which are valid until the next one begins.
  std::span<const Chunk> end(double now_s);
  // The step that runs comes to nothing.
  void stop() { chunks_ = {}; }
  // Now and then forgets steps that nobody looks back at.
  void trim_log();

  Load load() const;
  double busy_s() const { return busy_s_; }
  uint64_t num_steps() const { return num_steps_; }

 private:
  double step_seconds();

  InstanceConfig config_;
  uint64_t seed_;
  uint64_t slot_;
  PageCache cache_;
  Scheduler scheduler_;
  std::unique_ptr<Tiers> tiers_;
  StepLog log_;
  std::size_t log_limit_;  // of its steps, before the next look
  std::span<const Chunk> chunks_;
  StepSample step_;
  uint64_t num_steps_ = 0;
  double busy_s_ = 0.0;
};

}  // namespace inlay::sim
