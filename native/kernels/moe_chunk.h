// The work of moe() on some tokens: what one item of each pass does.
#pragma once

#include <cstdint>

#include "moe_adapters.h"
#include "moe_memory.h"
#include "moe_plan.h"
#include "operators.h"
#include "row_packing.h"
#include "thread_pool.h"

namespace inlay::kernels {

class Chunk {
 public:
  // Everything outlives it. `x` holds the packed rows for shared and for routed experts;
  // `adapters` is null where there are none.
  Chunk(ThreadPool::Session& session, const KernelTable& table, const Moe& p,
        const Experts& experts, const MoeMemory& memory, const PackedRows* x,
        const MoeAdapters* adapters)
      : session_(session),
        table_(table),
        p_(p),
        experts_(experts),
        memory_(memory),
        x_(x),
        adapters_(adapters) {}

  // Gate/up columns of a block. A thread that does all of a block keeps the values to itself, where
  // they stay in its cache.
  void gate_up(const Item& item, const Item* next, int thread) const;

  // A few panels of output columns for tokens [first, end): all experts in ascending order, so
  // every output element has one owner and one order of addition.
  void down(int64_t shard_index, int64_t first_panel, int64_t panels, int64_t first_token,
            int64_t end_token, Rows out, bool accumulate, int thread) const;

  // The same in two steps for few pairs, which give more threads something to read: products of
  // any block into `results` ([shards][pairs][output panels][kPanel], a block's panels lie
  // together) ...
  void down_results(const Block& block, int64_t first_panel, int64_t panels, float* results,
                    int thread) const;
  // ... then all of them added in the order of the blocks.
  void add_results(const Block* blocks, int64_t num_blocks, int64_t first_panel, int64_t panels,
                   const float* results, Rows out, bool accumulate) const;

 private:
  // The panel that follows in this item, or the first one of the next.
  Fetch panel_after(const Item& item, int64_t panel, const Item* next) const;
  void pack_hidden(const Block& block, const ExpertWeights::Shard& shard,
                   const float* values) const;
  // c[panels][rows][kPanel] of a block.
  void down_product(const Block& block, int64_t first_panel, int64_t panels, float* c,
                    int thread) const;
  void add(const Block& block, int64_t first_panel, int64_t panels, const float* c, Rows out) const;
  // The same columns of the next expert that has tokens, and its rows.
  void fetch_expert_after(int64_t expert, int64_t shard_index, int64_t first_panel,
                          PanelProduct& product) const;
  int64_t result_offset(const Block& block, int64_t panel) const;

  ThreadPool::Session& session_;
  const KernelTable& table_;
  const Moe& p_;
  const Experts& experts_;
  const MoeMemory& memory_;
  const PackedRows* x_;
  const MoeAdapters* adapters_;
};

}  // namespace inlay::kernels
