// What adapters add in moe(): beside the gate/up products before the activation, and beside the
// down products, for the pairs of their rows. A token's adapters do not change where its rows lie.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "adapters.h"
#include "moe_plan.h"
#include "operators.h"
#include "thread_pool.h"

namespace inlay::kernels {

class MoeAdapters {
 public:
  // Of tokens from `first_token` on, whose pairs are given. `low` is low_floats() of them.
  MoeAdapters(const Moe& p, const Experts& experts, const Pairs& pairs, int64_t first_token,
              int64_t max_pairs, float* low)
      : p_(p),
        experts_(experts),
        pairs_(pairs),
        first_token_(first_token),
        max_pairs_(max_pairs),
        rank_(max_rank(p)),
        low_(low) {}

  static int64_t max_rank(const Moe& p);
  // scale A x of gate and up, and of each shard's part of the down matrices; 0 without adapters.
  static int64_t low_floats(const Moe& p, const Experts& experts, int64_t max_pairs) {
    return (2 + experts.num_shards()) * max_pairs * max_rank(p);
  }

  // scale A x of gate and up for all pairs, on the pool.
  void take_inputs(ThreadPool::Session& session, const KernelTable& table, const Block* blocks,
                   int64_t num_blocks) const;
  // Adds to the results of a gate/up panel whose first column is `column` of the intermediate size.
  void add_gate_up(const KernelTable& table, const Block& block, int64_t column, float* c) const;
  // scale A h of a block's activated values, of its shard's columns.
  void take_hidden(const KernelTable& table, const Block& block, const float* values,
                   int64_t stride) const;
  // Adds to c[panels][rows][kPanel] of the down matrices.
  void add_down(const KernelTable& table, const Block& block, int64_t first_panel, int64_t panels,
                float* c) const;

 private:
  // Calls body(adapter, first, end) for each adapter with pairs [first, end) in the block.
  template <typename Body>
  void for_each(const Block& block, Body&& body) const {
    const int32_t* const begin = pairs_.token + block.first_row;
    const int32_t* const end = pairs_.token + block.end_row;
    const int32_t* at = begin;
    const auto token = [&](int64_t row) {
      return static_cast<int32_t>(
          std::clamp<int64_t>(row - first_token_, 0, std::numeric_limits<int32_t>::max()));
    };
    for (const ExpertRows& of : p_.adapters) {
      at = std::lower_bound(at, end, token(of.first));
      if (at == end) return;
      const int32_t* const after = std::lower_bound(at, end, token(of.end));
      const ExpertAdapter* const adapter =
          experts_.is_shared(block.expert) ? of.shared : of.experts;
      if (after != at && adapter != nullptr)
        body(*adapter, block.first_row + (at - begin), block.first_row + (after - begin));
      at = after;
    }
  }
  float* low(int64_t which, int64_t pair) const {
    return low_ + (which * max_pairs_ + pair) * rank_;
  }
  int64_t down_low(int64_t shard) const { return 2 + shard; }

  const Moe& p_;
  const Experts& experts_;
  const Pairs& pairs_;
  int64_t first_token_;
  int64_t max_pairs_;
  int64_t rank_;
  float* low_;
};

}  // namespace inlay::kernels
