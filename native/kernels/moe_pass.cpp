#include "moe_pass.h"

#include <algorithm>
#include <cstring>

#include "isa.h"

namespace inlay::kernels {
namespace {

// Rows packed or gathered by one item.
constexpr int64_t kRowsPerItem = 16;

int64_t largest_matrix(const MoePass& pass) {
  return std::max({pass.hidden, pass.weights.intermediate(), kPanel});
}

}  // namespace

MoePass::MoePass(SavedMoe& saved_moe, ThreadPool::Session& of_pool)
    : saved(saved_moe),
      session(of_pool),
      table(selected()),
      weights(saved_moe.weights_),
      pairs(saved_moe.pairs_),
      format(training_format(weights)),
      dtype(format == Format::kF32 ? DType::kF32 : DType::kBf16),
      element(dtype == DType::kF32 ? 4 : 2),
      hidden(weights.hidden()),
      has_lora(saved_moe.lora_.rank > 0) {
  for (int64_t s = 0; s < static_cast<int64_t>(weights.shards().size()); ++s) {
    shard_at.push_back(wide);
    for (int64_t first = 0; first < shard(s).width; first += kPanel, wide += kPanel)
      columns.push_back({s, first, wide});
  }
  x_stride = value_row_bytes(bytes_of(round_up(hidden, 32)));
  h_stride = value_row_bytes(bytes_of(wide));
  pair_stride = value_row_bytes(bytes_of(2 * wide));
  for (int64_t e = 0; e < weights.num_experts(); ++e) {
    const int64_t begin = pairs.begin[static_cast<std::size_t>(e)];
    const int64_t rows = pairs.begin[static_cast<std::size_t>(e) + 1] - begin;
    if (rows == 0) continue;
    const int64_t cuts = (rows + kMaxRows - 1) / kMaxRows;
    const auto first_block = static_cast<int64_t>(blocks.size());
    for (int64_t b = 0; b < cuts; ++b)
      blocks.push_back({e, begin + rows * b / cuts, begin + rows * (b + 1) / cuts});
    chosen.push_back({e, first_block, first_block + cuts});
  }
}

int64_t MoePass::thread_floats() const {
  const int64_t rank = saved.lora_.rank;
  const int64_t values = saved.lora_.dropout.drops() ? kMaxRows * wide : 0;
  constexpr auto kBlocks = static_cast<int64_t>(kBlocksAtOnce);
  return ProductScratch::kFloats + (kBlocks * kMaxRows + 2 * kSliceK) * kPanel +
         2 * rank * largest_matrix(*this) + rank * (3 * kPanel + kMaxRows) + values + 7 * 16;
}

MoePass::Scratch::Scratch(const MoePass& pass, int thread) {
  const ProductScratch product(pass.session, thread);
  const int64_t rank = pass.saved.lora_.rank;
  layout = product.layout;
  for (int i = 0; i < 3; ++i) c[i] = product.c + i * kMaxRows * kPanel;
  Carver carver(reinterpret_cast<std::byte*>(product.rest));
  sums = carver.take<float>(static_cast<int64_t>(kBlocksAtOnce) * kMaxRows * kPanel);
  slice = carver.take<std::byte>(kSliceK * kPanel * pass.element);
  decoded = carver.take<std::byte>(2 * kSliceK / kPanel * kDecodedBytes);
  for (float*& m : matrix) m = carver.take<float>(rank * largest_matrix(pass));
  grads = carver.take<float>(3 * rank * kPanel);
  low = carver.take<float>(rank * kMaxRows);
  values = carver.take<float>(0);
}

void MoePass::pack(ConstRows from, ValueRows to) const {
  const int64_t items = (from.rows + kRowsPerItem - 1) / kRowsPerItem;
  session.parallel_for(items, [&](int64_t item, int) {
    const int64_t first = item * kRowsPerItem, count = std::min(kRowsPerItem, from.rows - first);
    if (dtype == DType::kBf16)
      return table.pack_rows({from.row(first), from.stride, count, from.cols, format,
                              to.data + first * to.stride, to.stride});
    for (int64_t r = first; r < first + count; ++r)
      std::memcpy(to.data + r * to.stride, from.row(r),
                  static_cast<std::size_t>(from.cols) * sizeof(float));
  });
}

int64_t MoePass::gathered_bytes() const {
  return table.even_rows > kMaxRows || dtype == DType::kF32
             ? 0
             : pairs.count() * x_stride + kReadBehind;
}

ValueRows MoePass::for_products(ValueRows from, std::byte* memory) const {
  if (gathered_bytes() == 0) return from;
  session.parallel_for((pairs.count() + kRowsPerItem - 1) / kRowsPerItem, [&](int64_t item, int) {
    const int64_t first = item * kRowsPerItem;
    for (int64_t i = first; i < std::min(first + kRowsPerItem, pairs.count()); ++i)
      std::memcpy(memory + i * from.stride,
                  from.data + pairs.token[static_cast<std::size_t>(i)] * from.stride,
                  static_cast<std::size_t>(from.stride));
  });
  return {memory, from.stride, false};
}

int64_t MoePass::dropped_bytes() const {
  return saved.lora_.dropout.drops() ? saved.tokens_ * x_stride + kReadBehind : 0;
}

ValueRows MoePass::dropped_x(std::byte* memory) const {
  const ValueRows x{saved.x_.data(), x_stride, true};
  if (dropped_bytes() == 0) return x;
  session.parallel_for(saved.tokens_, [&](int64_t t, int) {
    const std::byte* from = x.data + t * x_stride;
    float values[kPanel];
    for (int64_t m = 0; m < hidden; m += kPanel) {
      const int64_t count = std::min(kPanel, hidden - m);
      std::byte* const to = memory + t * x_stride + bytes_of(m);
      if (dtype == DType::kF32)
        std::memcpy(values, from + bytes_of(m), static_cast<std::size_t>(bytes_of(count)));
      else
        for (int64_t i = 0; i < count; ++i)
          values[i] = from_bf16(reinterpret_cast<const uint16_t*>(from)[m + i]);
      saved.lora_.dropout.apply(0, t, m, count, values);
      if (dtype == DType::kF32)
        std::memcpy(to, values, static_cast<std::size_t>(bytes_of(count)));
      else
        for (int64_t i = 0; i < count; ++i) reinterpret_cast<uint16_t*>(to)[i] = to_bf16(values[i]);
    }
  });
  return {memory, x_stride, true};
}

void MoePass::point(const ValueRows& rows, const RowBlock& block, int64_t column,
                    const std::byte** pointers) const {
  for (int64_t pair = block.first; pair < block.end; ++pair)
    *pointers++ =
        rows.data + bytes_of(column) +
        (rows.of_tokens ? pairs.token[static_cast<std::size_t>(pair)] : pair) * rows.stride;
}

void MoePass::multiply(std::span<const RowBlock> some, ValueRows values, int64_t column,
                       const std::byte* panel, int64_t k, int64_t cols, bool add, Fetch next,
                       const Scratch& scratch) const {
  for (std::size_t b = 0; b < some.size(); ++b) {
    const std::byte* rows[kMaxRows];
    point(values, some[b], column, rows);
    table.panel_product({rows,
                         some[b].rows(),
                         panel,
                         1,
                         format,
                         k,
                         cols,
                         scratch.products(b),
                         scratch.layout,
                         {{}, b + 1 == some.size() ? next : Fetch{}},
                         false,
                         add});
  }
}

void MoePass::multiply_packed(std::span<const RowBlock> some, ValueRows values, int64_t column,
                              const std::byte* panel, const PanelLayout& layout, int64_t k,
                              int64_t cols, Fetch next, const Scratch& scratch) const {
  if (layout.format == format)
    return multiply(some, values, column, panel, k, cols, false, next, scratch);
  for (int64_t first = 0; first < k; first += kSliceK) {
    const int64_t count = std::min(kSliceK, k - first), after = first + count;
    table.vectors.decode_panel(
        {panel, layout.format, k, first, round_up(count, 32), scratch.slice});
    multiply(some, values, column + first, scratch.slice, count, cols, first > 0,
             after < k ? fetch_of(panel, 1, layout, after, kSliceK) : next, scratch);
  }
}

Fetch MoePass::head_of(const std::byte* panel, const PanelLayout& layout) const {
  if (layout.format == format) return {panel, layout.panel_bytes};
  return fetch_of(panel, 1, layout, 0, kSliceK);
}

const std::byte* MoePass::steps_of(const std::byte* panel, const PanelLayout& layout, int64_t k,
                                   int64_t first, std::byte* decoded) const {
  if (layout.format == format) return panel + first * kPanel * element;
  table.vectors.decode_panel(
      {panel, layout.format, k, first, std::min(kPanel, layout.k - first), decoded});
  return decoded;
}

void MoePass::transpose(const std::byte* steps, const PanelLayout& layout, int64_t first,
                        int64_t column, int64_t count, std::byte* out) const {
  table.vectors.transpose_panel(
      {steps, dtype, std::min(kPanel, layout.k - first), column, count, out});
}

Fetch MoePass::fetch_of(const std::byte* panels, int64_t num_panels, const PanelLayout& layout,
                        int64_t first, int64_t count) const {
  const FormatInfo& f = info(layout.format);
  if (has_blocks(layout.format)) {  // of all columns, in the strips of all panels
    const int64_t block = first / f.block.k;
    const int64_t end = (std::min(first + count, layout.k) + f.block.k - 1) / f.block.k;
    const int64_t strip_bytes = layout.blocks * f.block.bytes / 4 * kStrip * 4;
    return {panels + block_place(layout, block, 0).words,
            (end - block) * (f.block.bytes / 4 * kStrip * 4), num_panels * kPanel / kStrip,
            strip_bytes};
  }
  const int64_t group = first / layout.group_k;
  const int64_t line = kPanel * f.bits / 8;
  return {panels + group * layout.group_bytes + (first - group * layout.group_k) * line,
          std::min(count, layout.k - first) * line, num_panels, layout.panel_bytes};
}

void MoePass::transpose_matrix(const float* in, int64_t count, float* out) const {
  const int64_t rank = saved.lora_.rank;
  for (int64_t i = 0; i < count; ++i)
    for (int64_t j = 0; j < rank; ++j) out[j * count + i] = in[i * rank + j];
}

void MoePass::add_dropped(const RowBlock& block, uint64_t stream, int64_t first,
                          const float* low_of_block, const float* of_panel, float* c,
                          float* other) const {
  const int64_t rank = saved.lora_.rank;
  if (!saved.lora_.dropout.drops())
    return table.vectors.low_rank_add(
        {c, block.rows(), kPanel, low_of_block, rank, of_panel, rank});
  std::fill_n(other, block.rows() * kPanel, 0.0f);
  table.vectors.low_rank_add({other, block.rows(), kPanel, low_of_block, rank, of_panel, rank});
  for (int64_t r = 0; r < block.rows(); ++r) {
    float* values = other + r * kPanel;
    saved.lora_.dropout.apply(stream, pairs.token[static_cast<std::size_t>(block.first + r)], first,
                              kPanel, values);
    for (int64_t i = 0; i < kPanel; ++i) c[r * kPanel + i] += values[i];
  }
}

void MoePass::gate_and_up(ValueRows x, ValueRows x_dropped, ValueRows gate_up,
                          ValueRows activated) const {
  const int64_t rank = saved.lora_.rank;
  if (has_lora)
    session.parallel_for(static_cast<int64_t>(blocks.size()), [&](int64_t item, int) {
      const RowBlock& block = blocks[static_cast<std::size_t>(item)];
      const std::byte* rows[kMaxRows];
      point(x_dropped, block, 0, rows);
      for (int which = 0; which < 2; ++which)
        table.vectors.low_rank_dot(
            {rows, block.rows(), dtype, matrix(which == 0 ? kGateA : kUpA, block.expert), hidden,
             rank, hidden, saved.lora_.scale, false, low(which, block.first), rank});
    });
  const auto num_columns = static_cast<int64_t>(columns.size());
  const int64_t items = static_cast<int64_t>(chosen.size()) * num_columns;
  session.parallel_for(items, [&](int64_t item, int thread) {
    const Chosen& of = chosen[static_cast<std::size_t>(item / num_columns)];
    const Columns& part = columns[static_cast<std::size_t>(item % num_columns)];
    const ExpertWeights::Shard& in = shard(part.shard);
    const Scratch scratch(*this, thread);
    for (int64_t half = 0; half < 2; ++half) {
      const int64_t column = part.first + half * kHalf, f = in.first + column;
      if (column >= in.width) break;
      const int64_t cols = std::min(kHalf, in.width - column);
      const std::byte* const packed = in.gate_up_panel(of.expert, column / kHalf);
      // The other half, or what this thread draws next with all threads at work.
      Fetch next = head_of(packed + in.gate_up.panel_bytes, in.gate_up);
      if (half == 1 || column + kHalf >= in.width) {
        const int64_t after = item + session.num_threads();
        next = {};
        if (after < items) {
          const Columns& then = columns[static_cast<std::size_t>(after % num_columns)];
          const ExpertWeights::Shard& of_it = shard(then.shard);
          next = head_of(
              of_it.gate_up_panel(chosen[static_cast<std::size_t>(after / num_columns)].expert,
                                  then.first / kHalf),
              of_it.gate_up);
        }
      }
      if (has_lora)
        for (int which = 0; which < 2; ++which) {
          float* b = scratch.matrix[which];
          std::fill_n(b, rank * kHalf, 0.0f);
          const float* from = matrix(which == 0 ? kGateB : kUpB, of.expert) + f * rank;
          for (int64_t i = 0; i < cols; ++i)
            for (int64_t j = 0; j < rank; ++j) b[j * kHalf + i] = from[i * rank + j];
        }
      const auto products = [&](std::span<const RowBlock> some) {
        multiply_packed(some, x, 0, packed, in.gate_up, hidden, kPanel, next, scratch);
      };
      for_blocks(of, scratch, products, [&](const RowBlock& block, float* c) {
        if (has_lora)
          for (int which = 0; which < 2; ++which)
            table.vectors.low_rank_add({c + which * kHalf, block.rows(), kHalf,
                                        low(which, block.first), rank, scratch.matrix[which],
                                        rank});
        const int64_t at = part.at + half * kHalf;
        const auto place = [&](const ValueRows& to, int64_t to_column) {
          return to.data == nullptr ? nullptr
                                    : to.data + block.first * to.stride + bytes_of(to_column);
        };
        const bool biased = weights.has_bias();
        table.vectors.save_gated(
            {c, block.rows(), biased ? weights.gate_bias(of.expert) + f : nullptr,
             biased ? weights.up_bias(of.expert) + f : nullptr, cols, saved.activation_, dtype,
             place(gate_up, at), place(gate_up, wide + at), gate_up.stride, place(activated, at),
             activated.stride});
      });
    }
  });
}

}  // namespace inlay::kernels
