// Decides what an instance computes in the next step, as inlay.engine.scheduler does for requests
// with one choice: decodes first, then chunks of prompts of those that run, then of those that
// wait. tests/unit/sim/test_scheduler.py holds the two against each other.
#pragma once

#include <cstdint>
#include <set>
#include <span>
#include <vector>

#include "loader.h"
#include "page_cache.h"
#include "sequence.h"

namespace inlay::sim {

struct SchedulerConfig {
  uint32_t max_batch_tokens = 1024;
  uint32_t max_running = 64;
  uint32_t prefill_chunk = 512;
  bool decode_first = false;  // prompts wait until no output is under way, which no engine does
};

// Tokens start..stop of a sequence, computed in one step.
struct Chunk {
  Sequence* sequence;
  uint32_t start;
  uint32_t stop;

  bool samples() const { return stop == sequence->num_tokens; }
};

class Scheduler {
 public:
  // Throws ArgumentError where a limit is 0, or a step has no token for each that runs.
  Scheduler(const SchedulerConfig& config, PageCache& cache);

  // Asks it for blocks behind the device from now on; not null.
  void use(Loader* loader) { loader_ = loader; }

  std::size_t num_waiting() const { return waiting_.size(); }
  std::size_t num_running() const { return running_.size(); }
  const std::vector<Sequence*>& running() const { return running_; }
  const auto& waiting() const { return waiting_; }
  // Of those that wait, less what the cache had of them when they came.
  uint64_t waiting_tokens() const { return waiting_tokens_; }

  // Into the queue; it may bring pages with computed tokens in them.
  void add(Sequence& sequence);
  // Out, wherever it is. Its pages are given back unless they are kept.
  void remove(Sequence& sequence, bool keep_pages = false);
  // The chunks of the next step, with pages for them; valid until the next call. None if nothing
  // can run.
  std::span<const Chunk> schedule();
  // A chunk's KV is in its pages: others may use full blocks.
  void computed(const Chunk& chunk);

 private:
  struct Earlier {
    bool operator()(const Sequence* a, const Sequence* b) const { return a->before(*b); }
  };

  uint32_t schedule_running(bool decodes, uint32_t budget);
  void admit(uint32_t budget);
  uint32_t next_stop(Sequence& sequence, uint32_t budget);
  uint32_t load(Sequence& sequence, uint32_t stop);
  void end_prefetch(Sequence& sequence);
  void plan(Sequence& sequence, uint32_t stop);
  uint32_t drop_chunk(Sequence& sequence);
  void leave_queue(Sequence& sequence);
  bool make_slot(const Sequence& sequence);
  bool find_pages(Sequence& sequence);
  void found_pages(Sequence& sequence);
  bool shed(const Sequence& sequence);
  bool preempt_for(const Sequence& sequence);
  void preempt(Sequence& sequence);

  SchedulerConfig config_;
  PageCache& cache_;
  Loader* loader_ = nullptr;
  std::set<Sequence*, Earlier> waiting_;
  uint64_t waiting_tokens_ = 0;
  std::vector<Sequence*> running_;  // in order
  std::vector<Chunk> chunks_;       // `sequence` is null where one was taken out
  std::size_t num_planned_ = 0;     // of `chunks_`, those that were not
};

}  // namespace inlay::sim
