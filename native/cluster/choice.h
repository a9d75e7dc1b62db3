// What policies compute for each instance, and what is expected where one is chosen. The contracts
// are in src/inlay/cluster/policies, and the same in NumPy is
// src/inlay/cluster/_reference_choice.py: each sum is made in the same order there, so that both
// choose alike to the last bit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "state.h"

namespace inlay::cluster {

inline constexpr int64_t kNowhere = -1;

// What policies see of a request.
struct Request {
  int64_t num_tokens = 1;
  int64_t max_output_tokens = 0;
  std::size_t level = kNormal;
  int64_t store_blocks = 0;          // leading blocks that the store has
  double gap_s = 0.0;                // objective of gaps between tokens
  std::span<const int32_t> matches;  // leading blocks of each slot; those behind its end have none
};

// What a policy compared, a row of numbers over slots for each column. The first is what it costs.
class Columns {
 public:
  // More columns than these are never filled.
  Columns(std::size_t columns, std::size_t slots) : slots_(slots), values_(columns * slots) {}
  double* row(std::size_t column) { return values_.data() + column * slots_; }
  std::size_t slots() const { return slots_; }
  std::vector<double>& values() { return values_; }

 private:
  std::size_t slots_;
  std::vector<double> values_;
};

// Blocks that the instance that was chosen should get from another one, before it computes.
struct WantedCopy {
  std::size_t source = 0;
  int64_t first_block = 0;
  int64_t num_blocks = 0;  // 0: no copy
};

struct Choice {
  std::size_t prefill = 0;
  std::size_t decode = 0;
  int64_t reused_blocks = 0;
  int64_t loaded_blocks = 0;
  std::size_t source = 0;   // the slot that has most blocks, the first of them
  int64_t held_blocks = 0;  // and how many
  WantedCopy copy;
  double ttft_s = 0.0;
  double tbt_s = 0.0;
  double wait_s = 0.0;
  double work_s = 0.0;
  std::size_t num_columns = 0;  // that are filled
};

// Of policies.inlay.Inlay.
struct InlayWeights {
  double caution = 0.0;
  double later = 0.0;
  double eviction = 0.0;
  double max_pressure = 0.0;
  double displaced = 0.0;  // of the blocks that were computed before, the share that is gone
};

// Each fills `columns` (of the same number of slots as the state) in the order of its policy.

// The lowest of costs that somebody else made, which are the first column.
Choice choose_lowest(const State& state, const Request& request, double now_s, Columns& columns);
// Two columns.
Choice choose_least_loaded(const State& state, const Request& request, double now_s,
                           Columns& columns);
// Four columns.
Choice choose_local_cache_aware(const State& state, const Request& request, double now_s,
                                Columns& columns);
// Six columns.
Choice choose_kv_centric(const State& state, const Request& request, double now_s, bool copies,
                         double threshold, Columns& columns);
// Eight columns, or nine where blocks are displaced.
Choice choose_inlay(const State& state, const Request& request, double now_s,
                    const InlayWeights& weights, Columns& columns);

}  // namespace inlay::cluster
