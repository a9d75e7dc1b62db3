#include "moe_plan.h"

#include "product_scratch.h"

namespace inlay::kernels {

void sort_pairs(const Moe& p, const Experts& experts, int64_t first, int64_t tokens, Pairs pairs) {
  const int64_t num_shared = experts.num_shared();
  const int32_t* ids = p.expert_ids_TK + first * p.top_k;
  const float* routing = p.routing_TK + first * p.top_k;
  const auto runs_here = [&](int32_t id) {
    return id >= 0 && (p.expert_mask_E == nullptr || p.expert_mask_E[id] != 0);
  };
  std::fill_n(pairs.begin, experts.count() + 1, int64_t{0});
  for (int64_t e = 0; e < num_shared; ++e) pairs.begin[e + 1] = tokens;
  for (int64_t i = 0; i < tokens * p.top_k; ++i)
    if (runs_here(ids[i])) ++pairs.begin[num_shared + ids[i] + 1];
  for (int64_t e = 0; e < experts.count(); ++e) pairs.begin[e + 1] += pairs.begin[e];
  for (int64_t i = 0; i < num_shared * tokens; ++i) {
    pairs.token[i] = static_cast<int32_t>(i % tokens);
    pairs.weight[i] = 1.0f;
  }
  // Placing moves each begin to the expert's end, which is the next expert's begin.
  for (int64_t i = 0; i < tokens * p.top_k; ++i) {
    if (!runs_here(ids[i])) continue;
    const int64_t place = pairs.begin[num_shared + ids[i]]++;
    pairs.token[place] = static_cast<int32_t>(i / p.top_k);
    pairs.weight[place] = routing[i];
  }
  for (int64_t e = experts.count(); e > num_shared; --e) pairs.begin[e] = pairs.begin[e - 1];
  pairs.begin[num_shared] = num_shared * tokens;
}

int64_t cut_blocks(const Experts& experts, const Pairs& pairs, Block* blocks) {
  int64_t count = 0;
  for (int64_t s = 0; s < experts.num_shards(); ++s)
    for (int64_t e = 0; e < experts.count(); ++e) {
      const int64_t rows = pairs.begin[e + 1] - pairs.begin[e];
      if (rows == 0 || experts.shard(e, s) == nullptr) continue;
      const int64_t cuts = (rows + kMaxRows - 1) / kMaxRows;
      for (int64_t b = 0; b < cuts; ++b)
        blocks[count++] = {e, s, pairs.begin[e] + rows * b / cuts,
                           pairs.begin[e] + rows * (b + 1) / cuts, 0};
    }
  return count;
}

void cut_items(const Experts& experts, Block* blocks, int64_t num_blocks, int num_threads,
               Item* items, int64_t* shard_items) {
  int64_t panels = 0;
  for (int64_t b = 0; b < num_blocks; ++b)
    panels += experts.shard(blocks[b].expert, blocks[b].shard)->gate_up_panels;
  const bool whole = num_blocks >= kItemsPerThread * num_threads;
  const int64_t step =
      std::clamp<int64_t>(panels / (kItemsPerThread * num_threads), 1, kPanelsAtOnce);
  std::fill_n(shard_items, experts.num_shards(), int64_t{0});
  for (int64_t b = 0; b < num_blocks; ++b) {
    const int64_t end = experts.shard(blocks[b].expert, blocks[b].shard)->gate_up_panels;
    const int64_t width = whole ? end : step;
    for (int64_t first = 0; first < end; first += width) {
      *items++ = {blocks + b, first, std::min(first + width, end)};
      ++blocks[b].parts_left;
      ++shard_items[blocks[b].shard];
    }
  }
}

}  // namespace inlay::kernels
