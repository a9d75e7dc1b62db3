// Routed experts: activation(x gate, x up) down, weighted and summed.
//
// The chosen (token, expert) pairs are sorted by expert, then token, and cut into blocks of rows of
// one expert. Two passes: gate/up products, whose gated results are packed for the down product by
// whoever finishes a block; then down products, one owner per piece of the output, which adds a
// token's experts in ascending order. With several shards (NUMA nodes) each one does this for its
// part of the intermediate size, and the parts are added in the order of the shards.
#include <algorithm>
#include <span>

#include "isa.h"
#include "moe_chunk.h"
#include "operators.h"
#include "product_scratch.h"
#include "row_packing.h"
#include "thread_pool.h"

namespace inlay::kernels {
namespace {

// Tokens handled at a time: bounds the activations between the two passes.
constexpr int64_t kChunkTokens = 1024;

// Output panels of one item then: half an expert's in the shape of Qwen3-30B-A3B.
constexpr int64_t kResultPanels = 16;

// Output columns in groups of panels, all experts of a group by one thread.
template <typename Target>
void down_at_once(ThreadPool::Session& session, const Chunk& work, int64_t down_panels,
                  int64_t most_panels, int64_t tokens, int64_t* shard_items, int64_t num_shards,
                  const Target& target, bool accumulate) {
  // Few panels and many tokens: cut the tokens too, so that every thread has several items. Many
  // panels: take several at once, they share the reading of the activations.
  const int64_t wanted = 8 * session.num_threads();
  const int64_t token_cuts =
      std::clamp<int64_t>((wanted + down_panels - 1) / down_panels, 1, (tokens + 63) / 64);
  const int64_t at_once = std::clamp<int64_t>(down_panels / wanted, 1, most_panels);
  const int64_t groups = (down_panels + at_once - 1) / at_once;
  std::fill_n(shard_items, num_shards, groups * token_cuts);
  session.parallel_for_nodes({shard_items, static_cast<std::size_t>(num_shards)},
                             [&](int shard, int64_t item, int thread) {
                               const int64_t cut = item % token_cuts;
                               const int64_t panel = item / token_cuts * at_once;
                               work.down(shard, panel, std::min(at_once, down_panels - panel),
                                         tokens * cut / token_cuts, tokens * (cut + 1) / token_cuts,
                                         target(shard), shard == 0 && accumulate, thread);
                             });
}

// Blocks times groups of panels, then sums over the blocks.
template <typename Target>
void down_in_two_steps(ThreadPool::Session& session, const Chunk& work, const Block* blocks,
                       int64_t num_blocks, int64_t down_panels, float* results,
                       int64_t* shard_items, int64_t num_shards, const Target& target,
                       bool accumulate) {
  const int64_t step = std::clamp<int64_t>(
      num_blocks * down_panels / (kItemsPerThread * session.num_threads()), 1, kResultPanels);
  const int64_t groups = (down_panels + step - 1) / step;
  const auto blocks_of = [&](int shard) {
    const auto by_shard = [](const Block& block, int64_t s) { return block.shard < s; };
    const Block* end = blocks + num_blocks;
    return std::span(std::lower_bound(blocks, end, shard, by_shard),
                     std::lower_bound(blocks, end, shard + 1, by_shard));
  };
  for (int64_t s = 0; s < num_shards; ++s)
    shard_items[s] = static_cast<int64_t>(blocks_of(static_cast<int>(s)).size()) * groups;
  session.parallel_for_nodes({shard_items, static_cast<std::size_t>(num_shards)},
                             [&](int shard, int64_t item, int thread) {
                               const int64_t panel = item % groups * step;
                               work.down_results(
                                   blocks_of(shard)[static_cast<std::size_t>(item / groups)], panel,
                                   std::min(step, down_panels - panel), results, thread);
                             });
  session.parallel_for(num_shards * groups, [&](int64_t item, int) {
    const int shard = static_cast<int>(item / groups);
    const int64_t panel = item % groups * step;
    const auto mine = blocks_of(shard);
    work.add_results(mine.data(), static_cast<int64_t>(mine.size()), panel,
                     std::min(step, down_panels - panel), results, target(shard),
                     shard == 0 && accumulate);
  });
}

void add_rows(const float* from, Rows out, int64_t first, int64_t end) {
  for (int64_t t = first; t < end; ++t)
    for (int64_t m = 0; m < out.cols; ++m) out.row(t)[m] += from[t * out.cols + m];
}

}  // namespace

void moe(const Moe& p) {
  if (p.x_TM.rows == 0) return;
  const KernelTable& table = selected();
  ThreadPool::Session session(ThreadPool::instance());
  const Experts experts(p);
  const int64_t hidden = p.x_TM.cols;
  const int64_t num_shards = experts.num_shards();
  const int64_t chunk = std::min(kChunkTokens, p.x_TM.rows);
  const Format formats[2] = {(p.shared == nullptr ? p.experts : p.shared)->gate_up_format(),
                             p.experts->gate_up_format()};
  const int64_t bytes = MoeMemory(p, experts, chunk, formats, nullptr).bytes;
  const MoeMemory memory(p, experts, chunk, formats, session.shared_scratch<std::byte>(bytes));
  const int64_t copied_bytes = table.even_rows > kMaxRows
                                   ? 0
                                   : std::max(packed_bytes(formats[0], kMaxRows, hidden),
                                              packed_bytes(formats[1], kMaxRows, hidden));
  session.prepare_thread_scratch(ProductScratch::kFloats + kMaxRows * memory.value_stride +
                                 copied_bytes / 4);
  const int64_t down_panels = panel_count(hidden);

  for (int64_t first = 0; first < p.x_TM.rows; first += chunk) {
    const int64_t tokens = std::min(chunk, p.x_TM.rows - first);
    const ConstRows x = {p.x_TM.row(first), tokens, hidden, p.x_TM.stride};
    const Rows out = {p.out_TM.row(first), tokens, hidden, p.out_TM.stride};
    sort_pairs(p, experts, first, tokens, memory.pairs);
    PackedRows x_rows[2];
    x_rows[1] = pack(session, table, x, formats[1], memory.packed_x[1]);
    x_rows[0] = formats[0] == formats[1] ? x_rows[1]
                                         : pack(session, table, x, formats[0], memory.packed_x[0]);
    const MoeAdapters adapters(p, experts, memory.pairs, first, memory.max_pairs, memory.low);
    const bool adds = MoeAdapters::max_rank(p) > 0;
    const Chunk work(session, table, p, experts, memory, x_rows, adds ? &adapters : nullptr);
    const int64_t num_blocks = cut_blocks(experts, memory.pairs, memory.blocks);
    if (adds) adapters.take_inputs(session, table, memory.blocks, num_blocks);
    cut_items(experts, memory.blocks, num_blocks, session.num_threads(), memory.items,
              memory.shard_items);
    session.parallel_for_nodes(
        {memory.shard_items, static_cast<std::size_t>(num_shards)},
        [&](int shard, int64_t i, int thread) {
          const Item* first_item = memory.items;
          for (int s = 0; s < shard; ++s) first_item += memory.shard_items[s];
          // With all threads at work, the item that this thread draws next.
          const int64_t next = i + session.num_threads();
          work.gate_up(first_item[i],
                       next < memory.shard_items[shard] ? first_item + next : nullptr, thread);
        });

    const auto target = [&](int shard) {
      return shard == 0
                 ? out
                 : Rows{memory.partial + (shard - 1) * chunk * hidden, tokens, hidden, hidden};
    };
    if (num_blocks > 0 &&
        memory.pairs.begin[experts.count()] * down_panels * kPanel <= kResultFloats)
      down_in_two_steps(session, work, memory.blocks, num_blocks, down_panels, memory.results,
                        memory.shard_items, num_shards, target, p.accumulate);
    else
      down_at_once(session, work, down_panels,
                   panels_at_once(panel_layout(p.experts->down_format(), memory.value_stride)),
                   tokens, memory.shard_items, num_shards, target, p.accumulate);
    if (num_shards == 1) continue;
    session.parallel_for(tokens, [&](int64_t t, int) {
      for (int64_t s = 1; s < num_shards; ++s)
        add_rows(memory.partial + (s - 1) * chunk * hidden, out, t, t + 1);
    });
  }
}

}  // namespace inlay::kernels
