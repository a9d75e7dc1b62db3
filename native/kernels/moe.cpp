// Routed experts: activation(x gate, x up) down, weighted and summed.
//
// The chosen (token, expert) pairs are sorted by expert, then token, and cut into blocks of rows of
// one expert. Two passes: gate/up products, whose gated results are packed for the down product by
// whoever finishes a block; then down products, one owner per piece of the output, which adds a
// token's experts in ascending order. With several shards (NUMA nodes) each one does this for its
// part of the intermediate size, and the parts are added in the order of the shards.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <span>

#include "carver.h"
#include "isa.h"
#include "moe_plan.h"
#include "operators.h"
#include "product_scratch.h"
#include "row_packing.h"
#include "thread_pool.h"

namespace inlay::kernels {
namespace {

using Shard = ExpertWeights::Shard;

// Tokens handled at a time: bounds the activations between the two passes.
constexpr int64_t kChunkTokens = 1024;

// Down results of a decode step that are kept before they are added: 2 MiB.
constexpr int64_t kResultFloats = int64_t{1} << 19;

// Output panels of one item then: half an expert's in the shape of Qwen3-30B-A3B.
constexpr int64_t kResultPanels = 16;

// The gated activations of a shard between the passes: fp32, then packed.
struct Hidden {
  float* values;  // [pairs][value_stride]
  std::byte* packed;
};

class Chunk {
 public:
  Chunk(ThreadPool::Session& session, const KernelTable& table, const Moe& p,
        const Experts& experts, const Pairs& pairs, const PackedRows* x, const Hidden* hidden,
        int64_t value_stride, int64_t packed_stride)
      : session_(session),
        table_(table),
        p_(p),
        experts_(experts),
        pairs_(pairs),
        x_(x),
        hidden_(hidden),
        value_stride_(value_stride),
        packed_stride_(packed_stride) {}

  // Gate/up columns of a block. A thread that does all of a block keeps the values to itself, where
  // they stay in its cache.
  void gate_up(const Item& item, const Item* next, int thread) const {
    Block& block = *item.block;
    const ExpertWeights& weights = experts_.weights(block.expert);
    const Shard& shard = *experts_.shard(block.expert, block.shard);
    const int64_t expert = experts_.local(block.expert);
    const int64_t rows = block.end_row - block.first_row;
    const bool whole = item.end_panel - item.first_panel == shard.gate_up_panels;
    const ProductScratch scratch(session_, thread);
    float* values =
        whole ? scratch.rest : hidden_[block.shard].values + block.first_row * value_stride_;
    const std::byte* x_rows[kMaxRows];
    const PackedRows& x = x_[experts_.is_shared(block.expert) ? 0 : 1];
    for (int64_t r = 0; r < rows; ++r) x_rows[r] = x.row(pairs_.token[block.first_row + r]);
    const float* gate_bias = weights.gate_bias(expert);
    const float* up_bias = weights.up_bias(expert);
    // One panel at a time, because the block's values fill much of L2 already.
    for (int64_t panel = item.first_panel; panel < item.end_panel; ++panel) {
      const Fetch fetch = rows < kFetchRows ? Fetch{} : panel_after(item, panel, next);
      table_.panel_product({x_rows,
                            rows,
                            shard.gate_up_panel(expert, panel),
                            1,
                            weights.format(),
                            weights.hidden(),
                            kPanel,
                            scratch.c,
                            scratch.layout,
                            {fetch, {}},
                            fetch_window(shard.gate_up, rows)});
      const int64_t column = panel * ExpertWeights::kHalf;
      const int64_t cols = std::min(ExpertWeights::kHalf, shard.width - column);
      table_.gated_rows({scratch.c, scratch.c + ExpertWeights::kHalf, kPanel,
                         gate_bias == nullptr ? nullptr : gate_bias + shard.first + column,
                         up_bias == nullptr ? nullptr : up_bias + shard.first + column,
                         p_.activation, rows, cols, values + column, value_stride_});
    }
    if (whole || std::atomic_ref(block.parts_left).fetch_sub(1, std::memory_order_acq_rel) == 1)
      pack_hidden(block, shard, weights.format(), values);
  }

  // A few panels of output columns for tokens [first, end): all experts in ascending order, so
  // every output element has one owner and one order of addition.
  void down(int64_t shard_index, int64_t first_panel, int64_t panels, int64_t first_token,
            int64_t end_token, Rows out, bool accumulate, int thread) const {
    const ProductScratch scratch(session_, thread);
    if (!accumulate) clear(out, first_panel, panels, first_token, end_token);
    for (int64_t e = 0; e < experts_.count(); ++e) {
      const int32_t* expert_end = pairs_.token + pairs_.begin[e + 1];
      const int32_t* begin = pairs_.token + pairs_.begin[e];
      if (begin == expert_end || experts_.shard(e, shard_index) == nullptr) continue;
      begin = std::lower_bound(begin, expert_end, static_cast<int32_t>(first_token));
      const int32_t* end = std::lower_bound(begin, expert_end, static_cast<int32_t>(end_token));
      for (int64_t pair = begin - pairs_.token; pair < end - pairs_.token; pair += kMaxRows) {
        const Block rows = {e, shard_index, pair,
                            std::min(pair + kMaxRows, int64_t{end - pairs_.token}), 0};
        down_product(rows, first_panel, panels, scratch.c, thread);
        add(rows, first_panel, panels, scratch.c, out);
      }
    }
  }

  // The same in two steps for few pairs, which give more threads something to read: products of
  // any block into `results` ([shards][pairs][output panels][kPanel], a block's panels lie
  // together) ...
  void down_results(const Block& block, int64_t first_panel, int64_t panels, float* results,
                    int thread) const {
    down_product(block, first_panel, panels, results_of(block, first_panel, results), thread);
  }
  // ... then all of them added in the order of the blocks.
  void add_results(const Block* blocks, int64_t num_blocks, int64_t first_panel, int64_t panels,
                   const float* results, Rows out, bool accumulate) const {
    if (!accumulate) clear(out, first_panel, panels, 0, out.rows);
    for (int64_t b = 0; b < num_blocks; ++b)
      add(blocks[b], first_panel, panels,
          results_of(blocks[b], first_panel, const_cast<float*>(results)), out);
  }

 private:
  // The panel that follows in this item, or the first one of the next.
  Fetch panel_after(const Item& item, int64_t panel, const Item* next) const {
    const bool same = panel + 1 < item.end_panel;
    if (!same && next == nullptr) return {};
    const Item& of = same ? item : *next;
    const Shard& shard = *experts_.shard(of.block->expert, of.block->shard);
    return {
        shard.gate_up_panel(experts_.local(of.block->expert), same ? panel + 1 : of.first_panel),
        shard.gate_up.panel_bytes};
  }

  void pack_hidden(const Block& block, const Shard& shard, Format format,
                   const float* values) const {
    const int64_t rows = block.end_row - block.first_row;
    if (info(format).operand == Operand::kF32) {
      float* target = hidden_[block.shard].values + block.first_row * value_stride_;
      if (values != target)
        for (int64_t r = 0; r < rows; ++r)
          std::memcpy(target + r * value_stride_, values + r * value_stride_,
                      static_cast<std::size_t>(shard.width) * sizeof(float));
      return;
    }
    table_.pack_rows({values, value_stride_, rows, shard.width, format,
                      hidden_[block.shard].packed + block.first_row * packed_stride_,
                      packed_stride_});
  }

  float* results_of(const Block& block, int64_t panel, float* results) const {
    const int64_t output_panels = panel_count(p_.x_TM.cols);
    const int64_t rows = block.end_row - block.first_row;
    return results + block.shard * kResultFloats +
           (block.first_row * output_panels + panel * rows) * kPanel;
  }

  static void clear(Rows out, int64_t first_panel, int64_t panels, int64_t first, int64_t end) {
    const int64_t column = first_panel * kPanel;
    const int64_t cols = std::min(panels * kPanel, out.cols - column);
    for (int64_t t = first; t < end; ++t)
      std::memset(out.row(t) + column, 0, static_cast<std::size_t>(cols) * sizeof(float));
  }

  // c[panels][rows][kPanel] of a block.
  void down_product(const Block& block, int64_t first_panel, int64_t panels, float* c,
                    int thread) const {
    const ExpertWeights& weights = experts_.weights(block.expert);
    const Shard& shard = *experts_.shard(block.expert, block.shard);
    const Hidden& hidden = hidden_[block.shard];
    const bool plain = info(weights.format()).operand == Operand::kF32;
    const int64_t rows = block.end_row - block.first_row;
    const std::byte* x_rows[kMaxRows];
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t pair = block.first_row + r;
      x_rows[r] = plain ? reinterpret_cast<const std::byte*>(hidden.values + pair * value_stride_)
                        : hidden.packed + pair * packed_stride_;
    }
    const int64_t last_cols = std::min(kPanel, p_.x_TM.cols - (first_panel + panels - 1) * kPanel);
    PanelProduct product = {x_rows,
                            rows,
                            shard.down_panel(experts_.local(block.expert), first_panel),
                            panels,
                            weights.format(),
                            shard.width,
                            last_cols,
                            c,
                            ProductScratch(session_, thread).layout,
                            {},
                            fetch_window(shard.down, rows)};
    if (rows >= kFetchRows) fetch_expert_after(block.expert, block.shard, first_panel, product);
    table_.panel_product(product);
  }

  void add(const Block& block, int64_t first_panel, int64_t panels, const float* c,
           Rows out) const {
    const int64_t rows = block.end_row - block.first_row;
    float* out_rows[kMaxRows];
    for (int64_t r = 0; r < rows; ++r)
      out_rows[r] = out.row(pairs_.token[block.first_row + r]) + first_panel * kPanel;
    // One shard adds the bias.
    const float* bias = block.shard == 0
                            ? experts_.weights(block.expert).down_bias(experts_.local(block.expert))
                            : nullptr;
    for (int64_t i = 0; i < panels; ++i) {
      const int64_t column = (first_panel + i) * kPanel;
      table_.add_weighted_rows({c + i * rows * kPanel, bias == nullptr ? nullptr : bias + column,
                                rows, std::min(kPanel, out.cols - column),
                                pairs_.weight + block.first_row, out_rows});
      for (int64_t r = 0; r < rows; ++r) out_rows[r] += kPanel;
    }
  }

  // The same columns of the next expert that has tokens, and its rows.
  void fetch_expert_after(int64_t expert, int64_t shard_index, int64_t first_panel,
                          PanelProduct& product) const {
    for (int64_t e = expert + 1; e < experts_.count(); ++e) {
      const int64_t rows = std::min(kMaxRows, pairs_.begin[e + 1] - pairs_.begin[e]);
      const Shard* shard = experts_.shard(e, shard_index);
      if (rows == 0 || shard == nullptr) continue;
      product.next[0] = {shard->down_panel(experts_.local(e), first_panel),
                         product.panels * shard->down.panel_bytes};
      product.next[1] = {hidden_[shard_index].packed + pairs_.begin[e] * packed_stride_,
                         rows * packed_stride_};
      return;
    }
  }

  ThreadPool::Session& session_;
  const KernelTable& table_;
  const Moe& p_;
  const Experts& experts_;
  const Pairs& pairs_;
  const PackedRows* x_;    // for shared and for routed experts
  const Hidden* hidden_;   // [shards]
  int64_t value_stride_;   // floats
  int64_t packed_stride_;  // bytes
};

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
  const int64_t max_pairs = chunk * (p.top_k + experts.num_shared());
  const int64_t max_blocks =
      num_shards * (max_pairs / kMaxRows + std::min(max_pairs, experts.count()) + 1);
  const int64_t max_panels =
      experts.largest([](const ExpertWeights&, const Shard& s) { return s.gate_up_panels; });
  const int64_t value_stride = max_panels * ExpertWeights::kHalf;
  const int64_t packed_stride = experts.largest(
      [](const ExpertWeights& w, const Shard& s) { return packed_bytes(w.format(), 1, s.width); });
  const Format formats[2] = {p.shared == nullptr ? p.experts->format() : p.shared->format(),
                             p.experts->format()};
  session.prepare_thread_scratch(ProductScratch::kFloats + kMaxRows * value_stride);

  int64_t bytes = Carver::size<int64_t>(experts.count() + 1) + Carver::size<int32_t>(max_pairs) +
                  Carver::size<float>(max_pairs) + Carver::size<Block>(max_blocks) +
                  Carver::size<Item>(max_blocks * max_panels) + Carver::size<Hidden>(num_shards) +
                  Carver::size<int64_t>(num_shards);
  for (const Format format : formats)
    bytes += Carver::size<std::byte>(packed_bytes(format, chunk, hidden));
  bytes += num_shards * (Carver::size<float>(max_pairs * value_stride) +
                         Carver::size<std::byte>(max_pairs * packed_stride));
  bytes += Carver::size<float>((num_shards - 1) * chunk * hidden) +
           num_shards * Carver::size<float>(kResultFloats);
  Carver carver(session.shared_scratch<std::byte>(bytes));
  const Pairs pairs = {carver.take<int64_t>(experts.count() + 1), carver.take<int32_t>(max_pairs),
                       carver.take<float>(max_pairs)};
  Block* blocks = carver.take<Block>(max_blocks);
  Item* items = carver.take<Item>(max_blocks * max_panels);
  Hidden* hiddens = carver.take<Hidden>(num_shards);
  int64_t* shard_items = carver.take<int64_t>(num_shards);
  std::byte* packed_x[2];
  for (int i = 0; i < 2; ++i)
    packed_x[i] = carver.take<std::byte>(packed_bytes(formats[i], chunk, hidden));
  for (int64_t s = 0; s < num_shards; ++s)
    hiddens[s] = {carver.take<float>(max_pairs * value_stride),
                  carver.take<std::byte>(max_pairs * packed_stride)};
  float* partial = carver.take<float>((num_shards - 1) * chunk * hidden);
  float* results = carver.take<float>(num_shards * kResultFloats);
  const int64_t down_panels = panel_count(hidden);

  for (int64_t first = 0; first < p.x_TM.rows; first += chunk) {
    const int64_t tokens = std::min(chunk, p.x_TM.rows - first);
    const ConstRows x = {p.x_TM.row(first), tokens, hidden, p.x_TM.stride};
    const Rows out = {p.out_TM.row(first), tokens, hidden, p.out_TM.stride};
    sort_pairs(p, experts, first, tokens, pairs);
    PackedRows x_rows[2];
    x_rows[1] = pack(session, table, x, formats[1], packed_x[1]);
    x_rows[0] =
        formats[0] == formats[1] ? x_rows[1] : pack(session, table, x, formats[0], packed_x[0]);
    const Chunk work(session, table, p, experts, pairs, x_rows, hiddens, value_stride,
                     packed_stride);
    const int64_t num_blocks = cut_blocks(experts, pairs, blocks);
    cut_items(experts, blocks, num_blocks, session.num_threads(), items, shard_items);
    session.parallel_for_nodes(
        {shard_items, static_cast<std::size_t>(num_shards)}, [&](int shard, int64_t i, int thread) {
          const Item* first_item = items;
          for (int s = 0; s < shard; ++s) first_item += shard_items[s];
          // With all threads at work, the item that this thread draws next.
          const int64_t next = i + session.num_threads();
          work.gate_up(first_item[i], next < shard_items[shard] ? first_item + next : nullptr,
                       thread);
        });

    const auto target = [&](int shard) {
      return shard == 0 ? out
                        : Rows{partial + (shard - 1) * chunk * hidden, tokens, hidden, hidden};
    };
    if (num_blocks > 0 && pairs.begin[experts.count()] * down_panels * kPanel <= kResultFloats)
      down_in_two_steps(session, work, blocks, num_blocks, down_panels, results, shard_items,
                        num_shards, target, p.accumulate);
    else
      down_at_once(session, work, down_panels,
                   panels_at_once(panel_layout(p.experts->format(), value_stride)), tokens,
                   shard_items, num_shards, target, p.accumulate);
    if (num_shards == 1) continue;
    session.parallel_for(tokens, [&](int64_t t, int) {
      for (int64_t s = 1; s < num_shards; ++s)
        add_rows(partial + (s - 1) * chunk * hidden, out, t, t + 1);
    });
  }
}

}  // namespace inlay::kernels
