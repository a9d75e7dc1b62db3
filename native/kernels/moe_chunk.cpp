#include "moe_chunk.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "product_scratch.h"

namespace inlay::kernels {
namespace {

using Shard = ExpertWeights::Shard;

void clear(Rows out, int64_t first_panel, int64_t panels, int64_t first, int64_t end) {
  const int64_t column = first_panel * kPanel;
  const int64_t cols = std::min(panels * kPanel, out.cols - column);
  for (int64_t t = first; t < end; ++t)
    std::memset(out.row(t) + column, 0, static_cast<std::size_t>(cols) * sizeof(float));
}

}  // namespace

void Chunk::gate_up(const Item& item, const Item* next, int thread) const {
  Block& block = *item.block;
  const ExpertWeights& weights = experts_.weights(block.expert);
  const Shard& shard = *experts_.shard(block.expert, block.shard);
  const int64_t expert = experts_.local(block.expert);
  const int64_t rows = block.end_row - block.first_row;
  const bool whole = item.end_panel - item.first_panel == shard.gate_up_panels;
  const ProductScratch scratch(session_, thread);
  float* values = whole
                      ? scratch.rest
                      : memory_.hidden[block.shard].values + block.first_row * memory_.value_stride;
  const std::byte* x_rows[kMaxRows];
  const PackedRows& x = x_[experts_.is_shared(block.expert) ? 0 : 1];
  for (int64_t r = 0; r < rows; ++r) x_rows[r] = x.row(memory_.pairs.token[block.first_row + r]);
  if (rows >= table_.even_rows && info(shard.gate_up.format).operand != Operand::kF32) {
    std::byte* copies =
        reinterpret_cast<std::byte*>(scratch.rest + kMaxRows * memory_.value_stride);
    for (int64_t r = 0; r < rows; ++r, copies += x.stride)
      x_rows[r] = static_cast<const std::byte*>(
          std::memcpy(copies, x_rows[r], static_cast<std::size_t>(x.stride)));
  }
  const float* gate_bias = weights.gate_bias(expert);
  const float* up_bias = weights.up_bias(expert);
  // One panel at a time, because the block's values fill much of L2 already.
  for (int64_t panel = item.first_panel; panel < item.end_panel; ++panel) {
    const Fetch fetch = rows < kFetchRows ? Fetch{} : panel_after(item, panel, next);
    table_.panel_product({x_rows,
                          rows,
                          shard.gate_up_panel(expert, panel),
                          1,
                          shard.gate_up.format,
                          weights.hidden(),
                          kPanel,
                          scratch.c,
                          scratch.layout,
                          {fetch, {}},
                          fetch_window(shard.gate_up, rows)});
    const int64_t column = panel * ExpertWeights::kHalf;
    const int64_t cols = std::min(ExpertWeights::kHalf, shard.width - column);
    if (adapters_ != nullptr)
      adapters_->add_gate_up(table_, block, shard.first + column, scratch.c);
    table_.vectors.gated_rows({scratch.c, scratch.c + ExpertWeights::kHalf, kPanel,
                               gate_bias == nullptr ? nullptr : gate_bias + shard.first + column,
                               up_bias == nullptr ? nullptr : up_bias + shard.first + column,
                               p_.activation, rows, cols, values + column, memory_.value_stride});
  }
  if (whole || std::atomic_ref(block.parts_left).fetch_sub(1, std::memory_order_acq_rel) == 1) {
    if (adapters_ != nullptr) adapters_->take_hidden(table_, block, values, memory_.value_stride);
    pack_hidden(block, shard, values);
  }
}

void Chunk::down(int64_t shard_index, int64_t first_panel, int64_t panels, int64_t first_token,
                 int64_t end_token, Rows out, bool accumulate, int thread) const {
  const ProductScratch scratch(session_, thread);
  if (!accumulate) clear(out, first_panel, panels, first_token, end_token);
  for (int64_t e = 0; e < experts_.count(); ++e) {
    const int32_t* expert_end = memory_.pairs.token + memory_.pairs.begin[e + 1];
    const int32_t* begin = memory_.pairs.token + memory_.pairs.begin[e];
    if (begin == expert_end || experts_.shard(e, shard_index) == nullptr) continue;
    begin = std::lower_bound(begin, expert_end, static_cast<int32_t>(first_token));
    const int32_t* end = std::lower_bound(begin, expert_end, static_cast<int32_t>(end_token));
    for (int64_t pair = begin - memory_.pairs.token; pair < end - memory_.pairs.token;
         pair += kMaxRows) {
      const Block rows = {e, shard_index, pair,
                          std::min(pair + kMaxRows, int64_t{end - memory_.pairs.token}), 0};
      down_product(rows, first_panel, panels, scratch.c, thread);
      add(rows, first_panel, panels, scratch.c, out);
    }
  }
}

void Chunk::down_results(const Block& block, int64_t first_panel, int64_t panels, float* results,
                         int thread) const {
  down_product(block, first_panel, panels, results + result_offset(block, first_panel), thread);
}

void Chunk::add_results(const Block* blocks, int64_t num_blocks, int64_t first_panel,
                        int64_t panels, const float* results, Rows out, bool accumulate) const {
  if (!accumulate) clear(out, first_panel, panels, 0, out.rows);
  for (int64_t b = 0; b < num_blocks; ++b)
    add(blocks[b], first_panel, panels, results + result_offset(blocks[b], first_panel), out);
}

Fetch Chunk::panel_after(const Item& item, int64_t panel, const Item* next) const {
  const bool same = panel + 1 < item.end_panel;
  if (!same && next == nullptr) return {};
  const Item& of = same ? item : *next;
  const Shard& shard = *experts_.shard(of.block->expert, of.block->shard);
  return {shard.gate_up_panel(experts_.local(of.block->expert), same ? panel + 1 : of.first_panel),
          shard.gate_up.panel_bytes};
}

void Chunk::pack_hidden(const Block& block, const Shard& shard, const float* values) const {
  const int64_t rows = block.end_row - block.first_row;
  if (info(shard.down.format).operand == Operand::kF32) {
    float* target = memory_.hidden[block.shard].values + block.first_row * memory_.value_stride;
    if (values != target)
      for (int64_t r = 0; r < rows; ++r)
        std::memcpy(target + r * memory_.value_stride, values + r * memory_.value_stride,
                    static_cast<std::size_t>(shard.width) * sizeof(float));
    return;
  }
  table_.pack_rows({values, memory_.value_stride, rows, shard.width, shard.down.format,
                    memory_.hidden[block.shard].packed + block.first_row * memory_.packed_stride,
                    memory_.packed_stride});
}

void Chunk::down_product(const Block& block, int64_t first_panel, int64_t panels, float* c,
                         int thread) const {
  const Shard& shard = *experts_.shard(block.expert, block.shard);
  const Hidden& hidden = memory_.hidden[block.shard];
  const bool plain = info(shard.down.format).operand == Operand::kF32;
  const int64_t rows = block.end_row - block.first_row;
  const std::byte* x_rows[kMaxRows];
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t pair = block.first_row + r;
    x_rows[r] =
        plain ? reinterpret_cast<const std::byte*>(hidden.values + pair * memory_.value_stride)
              : hidden.packed + pair * memory_.packed_stride;
  }
  const int64_t last_cols = std::min(kPanel, p_.x_TM.cols - (first_panel + panels - 1) * kPanel);
  PanelProduct product = {x_rows,
                          rows,
                          shard.down_panel(experts_.local(block.expert), first_panel),
                          panels,
                          shard.down.format,
                          shard.width,
                          last_cols,
                          c,
                          ProductScratch(session_, thread).layout,
                          {},
                          fetch_window(shard.down, rows)};
  if (rows >= kFetchRows) fetch_expert_after(block.expert, block.shard, first_panel, product);
  table_.panel_product(product);
  if (adapters_ != nullptr) adapters_->add_down(table_, block, first_panel, panels, c);
}

void Chunk::add(const Block& block, int64_t first_panel, int64_t panels, const float* c,
                Rows out) const {
  const int64_t rows = block.end_row - block.first_row;
  float* out_rows[kMaxRows];
  for (int64_t r = 0; r < rows; ++r)
    out_rows[r] = out.row(memory_.pairs.token[block.first_row + r]) + first_panel * kPanel;
  // One shard adds the bias.
  const float* bias = block.shard == 0
                          ? experts_.weights(block.expert).down_bias(experts_.local(block.expert))
                          : nullptr;
  for (int64_t i = 0; i < panels; ++i) {
    const int64_t column = (first_panel + i) * kPanel;
    table_.vectors.add_weighted_rows(
        {c + i * rows * kPanel, bias == nullptr ? nullptr : bias + column, rows,
         std::min(kPanel, out.cols - column), memory_.pairs.weight + block.first_row, out_rows});
    for (int64_t r = 0; r < rows; ++r) out_rows[r] += kPanel;
  }
}

void Chunk::fetch_expert_after(int64_t expert, int64_t shard_index, int64_t first_panel,
                               PanelProduct& product) const {
  for (int64_t e = expert + 1; e < experts_.count(); ++e) {
    const int64_t rows = std::min(kMaxRows, memory_.pairs.begin[e + 1] - memory_.pairs.begin[e]);
    const Shard* shard = experts_.shard(e, shard_index);
    if (rows == 0 || shard == nullptr) continue;
    product.next[0] = {shard->down_panel(experts_.local(e), first_panel),
                       product.panels * shard->down.panel_bytes};
    product.next[1] = {
        memory_.hidden[shard_index].packed + memory_.pairs.begin[e] * memory_.packed_stride,
        rows * memory_.packed_stride};
    return;
  }
}

// A block's panels lie together.
int64_t Chunk::result_offset(const Block& block, int64_t panel) const {
  const int64_t output_panels = panel_count(p_.x_TM.cols);
  const int64_t rows = block.end_row - block.first_row;
  return block.shard * kResultFloats + (block.first_row * output_panels + panel * rows) * kPanel;
}

}  // namespace inlay::kernels
