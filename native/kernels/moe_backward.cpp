// The backward pass of training. By expert and columns of the intermediate size: the gradient of
// the activated values, of gate and up, and of what the LoRA matrices at these columns hold. Then
// by columns of the hidden size: the gradient of x, which adds the experts in ascending order, and
// of the other LoRA matrices. The gradient of a routing weight is the product of the activated
// values with their gradient before that weight: the expert's output itself is not needed.
#include <algorithm>
#include <cstring>
#include <span>

#include "moe_pass.h"
#include "moe_training.h"

namespace inlay::kernels {
namespace {

class Backward {
 public:
  Backward(MoePass& pass, ConstRows grad_out, Rows grad_x, float* grad_routing,
           const MoeLoraGrads& grads, ValueRows gate_up)
      : pass_(pass),
        lora_(pass.saved.lora()),
        grad_out_(grad_out),
        grad_x_(grad_x),
        grad_routing_(grad_routing),
        grads_(grads),
        gate_up_(gate_up) {}

  int64_t carve(std::byte* memory) {
    Carver carver(memory);
    const int64_t pairs = pass_.pairs.count();
    grads_TM_ = {carver.take<std::byte>(grad_out_.rows * pass_.x_stride + kReadBehind),
                 pass_.x_stride, true};
    gathered_ = carver.take<std::byte>(pass_.gathered_bytes());
    dropped_ = carver.take<std::byte>(pass_.dropped_bytes());
    dots_ = carver.take<float>(static_cast<int64_t>(pass_.columns.size()) * pairs);
    low_grads_ = carver.take<float>(3 * pairs * lora_.rank);
    return carver.taken();
  }

  void run(ValueRows x_dropped) {
    clear();
    pass_.pack(grad_out_, grads_TM_);
    if (pass_.has_lora) low_rank_of_output();
    const ValueRows grads = pass_.for_products(grads_TM_, gathered_);
    over_columns(grads);
    routing();
    if (pass_.has_lora) low_rank_of_gate_up();
    over_hidden(x_dropped);
  }

  std::byte* gathered() const { return gathered_; }
  std::byte* dropped() const { return dropped_; }

 private:
  static constexpr int64_t kHalf = MoePass::kHalf;
  static constexpr std::size_t kSliceColumns = MoePass::kSliceK / kPanel;
  static constexpr std::size_t kSliceHalves = 2 * kSliceColumns;
  using RowBlock = MoePass::RowBlock;
  using Scratch = MoePass::Scratch;

  float* low_grad(int which, int64_t pair) const {
    return low_grads_ + (which * pass_.pairs.count() + pair) * lora_.rank;
  }
  float* grad(LoraMatrix which, int64_t expert) const {
    return grads_[static_cast<std::size_t>(which)] + expert * pass_.matrix_size(which);
  }

  // Experts without tokens have gradients of zero, and so have choices that are skipped.
  void clear() {
    std::fill_n(grad_routing_, pass_.saved.tokens() * pass_.saved.top_k(), 0.0f);
    if (!pass_.has_lora) return;
    for (int64_t e = 0; e < pass_.weights.num_experts(); ++e) {
      const auto* begin = pass_.pairs.begin.data() + e;
      if (begin[0] != begin[1]) continue;
      for (int which = 0; which < kLoraMatrices; ++which) {
        const auto matrix = static_cast<LoraMatrix>(which);
        std::fill_n(grad(matrix, e), pass_.matrix_size(matrix), 0.0f);
      }
    }
  }

  // scale B^T times the gradient of the output, before the routing weight.
  void low_rank_of_output() const {
    pass_.session.parallel_for(static_cast<int64_t>(pass_.blocks.size()), [&](int64_t item,
                                                                              int thread) {
      const RowBlock& block = pass_.blocks[static_cast<std::size_t>(item)];
      const Scratch scratch(pass_, thread);
      pass_.transpose_matrix(pass_.matrix(kDownB, block.expert), pass_.hidden, scratch.matrix[0]);
      const std::byte* rows[kMaxRows];
      pass_.point(grads_TM_, block, 0, rows);
      pass_.table.vectors.low_rank_dot({rows, block.rows(), pass_.dtype, scratch.matrix[0],
                                        pass_.hidden, lora_.rank, pass_.hidden, lora_.scale, false,
                                        low_grad(2, block.first), lora_.rank});
    });
  }

  // The same of gate and up.
  void low_rank_of_gate_up() const {
    pass_.session.parallel_for(2 * static_cast<int64_t>(pass_.blocks.size()), [&](int64_t item,
                                                                                  int thread) {
      const RowBlock& block = pass_.blocks[static_cast<std::size_t>(item / 2)];
      const int which = static_cast<int>(item % 2);
      const Scratch scratch(pass_, thread);
      const int64_t width = pass_.weights.intermediate();
      pass_.transpose_matrix(pass_.matrix(which == 0 ? kGateB : kUpB, block.expert), width,
                             scratch.matrix[0]);
      for (std::size_t s = 0; s < pass_.shard_at.size(); ++s) {
        const ExpertWeights::Shard& shard = pass_.shard(static_cast<int64_t>(s));
        const std::byte* rows[kMaxRows];
        pass_.point(gate_up_, block, which * pass_.wide + pass_.shard_at[s], rows);
        pass_.table.vectors.low_rank_dot(
            {rows, block.rows(), pass_.dtype, scratch.matrix[0] + shard.first, width, lora_.rank,
             shard.width, lora_.scale, s > 0, low_grad(which, block.first), lora_.rank});
      }
    });
  }

  // `low` times the routing weights.
  const float* weighted(const RowBlock& block, const float* low, const Scratch& scratch) const {
    for (int64_t r = 0; r < block.rows(); ++r)
      for (int64_t j = 0; j < lora_.rank; ++j)
        scratch.low[r * lora_.rank + j] =
            pass_.pairs.weight[static_cast<std::size_t>(block.first + r)] * low[r * lora_.rank + j];
    return scratch.low;
  }

  // Adds a block of rows to the gradient [rank][kPanel] of a matrix and, after the last one, writes
  // its first columns: of A in rows of a matrix with `stride`, of B as rows of rank values.
  void accumulate(const MoePass::Chosen& of, const RowBlock& block, const std::byte* const* rows,
                  DType dtype, const float* low, float* sums, float* out, int64_t cols,
                  int64_t stride) const {
    const int64_t rank = lora_.rank;
    pass_.table.vectors.low_rank_grad(
        {rows, block.rows(), dtype, low, rank, rank, &block != &pass_.blocks_of(of).front(), sums});
    if (&block != &pass_.blocks_of(of).back()) return;
    for (int64_t j = 0; j < rank; ++j)
      if (stride > 0)
        std::copy_n(sums + j * kPanel, cols, out + j * stride);
      else
        for (int64_t i = 0; i < cols; ++i) out[i * rank + j] = sums[j * kPanel + i];
  }

  void over_columns(ValueRows grads) const {
    const auto num_columns = static_cast<int64_t>(pass_.columns.size());
    pass_.session.parallel_for(
        static_cast<int64_t>(pass_.chosen.size()) * num_columns, [&](int64_t item, int thread) {
          // With all threads at work, the item that this thread draws next.
          const int64_t after = item + pass_.session.num_threads();
          Fetch next;
          if (after < num_columns * static_cast<int64_t>(pass_.chosen.size())) {
            next = down_steps(pass_.chosen[static_cast<std::size_t>(after / num_columns)].expert,
                              pass_.columns[static_cast<std::size_t>(after % num_columns)], 0);
          }
          columns_of(pass_.chosen[static_cast<std::size_t>(item / num_columns)], item % num_columns,
                     grads, next, Scratch(pass_, thread));
        });
  }

  void columns_of(const MoePass::Chosen& of, int64_t index, ValueRows grads, Fetch next,
                  const Scratch& scratch) const {
    const MoePass::Columns& part = pass_.columns[static_cast<std::size_t>(index)];
    const ExpertWeights::Shard& shard = pass_.shard(part.shard);
    const int64_t rank = lora_.rank, f = shard.first + part.first;
    const int64_t cols = std::min(kPanel, shard.width - part.first);
    if (pass_.has_lora) {
      std::fill_n(scratch.matrix[0], rank * kPanel, 0.0f);
      for (int64_t j = 0; j < rank; ++j)
        std::copy_n(pass_.matrix(kDownA, of.expert) + j * pass_.weights.intermediate() + f, cols,
                    scratch.matrix[0] + j * kPanel);
    }
    float* const activated = scratch.c[0];
    float* const sums[3] = {scratch.grads, scratch.grads + rank * kPanel,
                            scratch.grads + 2 * rank * kPanel};
    pass_.for_blocks(
        of, scratch,
        [&](std::span<const RowBlock> blocks) {
          multiply_down(of, part, blocks, grads, next, scratch);
        },
        [&](const RowBlock& block, float* c) {
          const std::byte* rows[kMaxRows];
          const uint64_t stream = 1 + static_cast<uint64_t>(block.expert);
          if (pass_.has_lora)
            pass_.add_dropped(block, stream, f, low_grad(2, block.first), scratch.matrix[0], c,
                              activated);
          std::byte* const gate =
              gate_up_.data + block.first * gate_up_.stride + pass_.bytes_of(part.at);
          pass_.table.vectors.gated_backward(
              {c, pass_.pairs.weight.data() + block.first, block.rows(), pass_.saved.activation(),
               pass_.dtype, gate, gate + pass_.bytes_of(pass_.wide), gate_up_.stride, activated,
               scratch.c[1], scratch.c[2], dots_ + index * pass_.pairs.count() + block.first});
          if (!pass_.has_lora) return;
          if (lora_.dropout.drops())
            for (int64_t r = 0; r < block.rows(); ++r)
              lora_.dropout.apply(stream,
                                  pass_.pairs.token[static_cast<std::size_t>(block.first + r)], f,
                                  kPanel, activated + r * kPanel);
          const auto add = [&](int i, const float* values, const float* low, float* out,
                               int64_t stride) {
            for (int64_t r = 0; r < block.rows(); ++r)
              rows[r] = reinterpret_cast<const std::byte*>(values + r * kPanel);
            accumulate(of, block, rows, DType::kF32, low, sums[i], out, cols, stride);
          };
          add(0, scratch.c[1], pass_.low(0, block.first), grad(kGateB, of.expert) + f * rank, 0);
          add(1, scratch.c[2], pass_.low(1, block.first), grad(kUpB, of.expert) + f * rank, 0);
          add(2, activated, weighted(block, low_grad(2, block.first), scratch),
              grad(kDownA, of.expert) + f, pass_.weights.intermediate());
        });
  }

  // The gradient of the output times columns of the down matrix.
  void multiply_down(const MoePass::Chosen& of, const MoePass::Columns& part,
                     std::span<const RowBlock> blocks, ValueRows grads, Fetch next,
                     const Scratch& scratch) const {
    const ExpertWeights::Shard& shard = pass_.shard(part.shard);
    for (int64_t k = 0; k < pass_.hidden; k += MoePass::kSliceK) {
      const int64_t count = std::min(MoePass::kSliceK, pass_.hidden - k);
      for (int64_t i = 0; i < panel_count(count); ++i) {
        const std::byte* const steps =
            pass_.steps_of(shard.down_panel(of.expert, k / kPanel + i), shard.down, shard.width,
                           part.first, scratch.decoded);
        pass_.transpose(steps, shard.down, part.first, 0, kPanel,
                        scratch.slice + i * kPanel * kPanel * pass_.element);
      }
      const int64_t after = k + MoePass::kSliceK;
      const Fetch soon = after < pass_.hidden ? down_steps(of.expert, part, after) : next;
      pass_.multiply(blocks, grads, k, scratch.slice, count, kPanel, k > 0, soon, scratch);
    }
  }
  // What a slice of that reads.
  Fetch down_steps(int64_t expert, const MoePass::Columns& part, int64_t k) const {
    const ExpertWeights::Shard& shard = pass_.shard(part.shard);
    return pass_.fetch_of(shard.down_panel(expert, k / kPanel),
                          panel_count(std::min(MoePass::kSliceK, pass_.hidden - k)), shard.down,
                          part.first, kPanel);
  }

  // Sums over all columns, in their order.
  void routing() const {
    constexpr int64_t kPairsPerItem = 64;
    const int64_t pairs = pass_.pairs.count();
    pass_.session.parallel_for((pairs + kPairsPerItem - 1) / kPairsPerItem, [&](int64_t item, int) {
      const int64_t first = item * kPairsPerItem;
      for (int64_t pair = first; pair < std::min(first + kPairsPerItem, pairs); ++pair) {
        float sum = 0;
        for (std::size_t i = 0; i < pass_.columns.size(); ++i)
          sum += dots_[static_cast<int64_t>(i) * pairs + pair];
        const auto place = static_cast<std::size_t>(pair);
        if (pass_.weights.has_bias()) sum += of_bias(pass_.pairs.token[place], expert_of(pair));
        grad_routing_[pass_.pairs.choice[place]] = sum;
      }
    });
  }
  int64_t expert_of(int64_t pair) const {
    const auto& begin = pass_.pairs.begin;
    return std::upper_bound(begin.begin(), begin.end(), pair) - begin.begin() - 1;
  }
  float of_bias(int64_t token, int64_t expert) const {
    const float* bias = pass_.weights.down_bias(expert);
    const float* values = grad_out_.row(token);
    float sum = 0;
    for (int64_t m = 0; m < pass_.hidden; ++m) sum += values[m] * bias[m];
    return sum;
  }

  // An expert's rows serve some neighbouring panels while they lie in L2: all of them are more than
  // a cache holds, and are read once per item. Each thread has two items at least.
  void over_hidden(ValueRows x_dropped) const {
    constexpr int64_t kPanelsPerItem = 8, kItemsPerThread = 2;
    const int64_t panels = panel_count(pass_.hidden);
    const int64_t per_item = std::clamp<int64_t>(
        panels / (kItemsPerThread * pass_.session.num_threads()), 1, kPanelsPerItem);
    pass_.session.parallel_for((panels + per_item - 1) / per_item, [&](int64_t item, int thread) {
      const int64_t first = item * per_item * kPanel;
      const int64_t end = std::min(first + per_item * kPanel, pass_.hidden);
      for (int64_t t = 0; t < grad_x_.rows; ++t)
        std::fill_n(grad_x_.row(t) + first, end - first, 0.0f);
      const Scratch scratch(pass_, thread);
      for (std::size_t i = 0; i < pass_.chosen.size(); ++i)
        for (int64_t column = first; column < end; column += kPanel) {
          Fetch next;
          if (column + kPanel < end)
            next = fetch_gate_up(pass_.chosen[i].expert, 0, column + kPanel);
          else if (i + 1 < pass_.chosen.size())
            next = fetch_gate_up(pass_.chosen[i + 1].expert, 0, first);
          hidden_of(pass_.chosen[i], column, std::min(kPanel, pass_.hidden - column), x_dropped,
                    next, scratch);
        }
    });
  }

  // The gradients of gate and up times columns of their matrices: a slice of gate, then the one of
  // up that shares panels with it.
  void multiply_gate_up(const MoePass::Chosen& of, int64_t column, int64_t cols,
                        std::span<const RowBlock> blocks, Fetch next,
                        const Scratch& scratch) const {
    const std::size_t parts = pass_.columns.size();
    for (std::size_t first = 0; first < parts; first += kSliceColumns) {
      const std::size_t end = std::min(first + kSliceColumns, parts);
      const std::byte* steps[kSliceHalves];
      for (std::size_t i = 0; i < 2 * (end - first); ++i)
        steps[i] = gate_up_steps(of.expert, 2 * first + i, column, scratch, i);
      Fetch soon = end < parts ? fetch_gate_up(of.expert, end, column) : next;
      const int64_t at = pass_.columns[first].at;
      for (int64_t side = 0; side < 2; ++side) {
        for (std::size_t i = 0; i < 2 * (end - first); ++i) {
          std::byte* const out =
              scratch.slice + static_cast<int64_t>(i) * kHalf * kPanel * pass_.element;
          if (steps[i] == nullptr)
            std::memset(out, 0, static_cast<std::size_t>(kHalf * kPanel * pass_.element));
          else
            pass_.transpose(steps[i], pass_.shard(0).gate_up, column, side * kHalf, kHalf, out);
        }
        // Each fetches half of what comes next.
        Fetch half = soon;
        half.pieces = side == 0 ? (soon.pieces + 1) / 2 : soon.pieces / 2;
        half.data += side * (soon.pieces - half.pieces) * soon.stride;
        pass_.multiply(blocks, gate_up_, side * pass_.wide + at, scratch.slice,
                       static_cast<int64_t>(end - first) * kPanel, cols, first > 0 || side > 0,
                       half, scratch);
      }
    }
  }
  // The steps of `column` in the panel of half of a Columns; null behind the last panel.
  const std::byte* gate_up_steps(int64_t expert, std::size_t half, int64_t column,
                                 const Scratch& scratch, std::size_t place) const {
    const MoePass::Columns& part = pass_.columns[half / 2];
    const ExpertWeights::Shard& shard = pass_.shard(part.shard);
    const int64_t first = part.first + static_cast<int64_t>(half % 2) * kHalf;
    if (first >= shard.width) return nullptr;
    return pass_.steps_of(shard.gate_up_panel(expert, first / kHalf), shard.gate_up, pass_.hidden,
                          column, scratch.decoded + place * MoePass::kDecodedBytes);
  }
  // What a slice of that reads, as far as its first shard goes.
  Fetch fetch_gate_up(int64_t expert, std::size_t first, int64_t column) const {
    const MoePass::Columns& part = pass_.columns[first];
    const ExpertWeights::Shard& shard = pass_.shard(part.shard);
    const int64_t panel = part.first / kHalf;
    const int64_t panels = std::min<int64_t>(kSliceHalves, shard.gate_up_panels - panel);
    return pass_.fetch_of(shard.gate_up_panel(expert, panel), panels, shard.gate_up, column,
                          kPanel);
  }
  void hidden_of(const MoePass::Chosen& of, int64_t column, int64_t cols, ValueRows x_dropped,
                 Fetch next, const Scratch& scratch) const {
    const int64_t rank = lora_.rank;
    if (pass_.has_lora)
      for (int which = 0; which < 2; ++which) {
        std::fill_n(scratch.matrix[which], rank * kPanel, 0.0f);
        const float* a = pass_.matrix(which == 0 ? kGateA : kUpA, of.expert) + column;
        for (int64_t j = 0; j < rank; ++j)
          std::copy_n(a + j * pass_.hidden, cols, scratch.matrix[which] + j * kPanel);
      }
    pass_.for_blocks(
        of, scratch,
        [&](std::span<const RowBlock> blocks) {
          multiply_gate_up(of, column, cols, blocks, next, scratch);
        },
        [&](const RowBlock& block, float* c) {
          const std::byte* rows[kMaxRows];
          if (pass_.has_lora)
            for (int which = 0; which < 2; ++which)
              pass_.add_dropped(block, 0, column, low_grad(which, block.first),
                                scratch.matrix[which], c, scratch.c[0]);
          float* out_rows[kMaxRows];
          float ones[kMaxRows];
          for (int64_t r = 0; r < block.rows(); ++r) {
            const auto pair = static_cast<std::size_t>(block.first + r);
            out_rows[r] = grad_x_.row(pass_.pairs.token[pair]) + column;
            ones[r] = 1;
          }
          pass_.table.vectors.add_weighted_rows({c, nullptr, block.rows(), cols, ones, out_rows});
          if (!pass_.has_lora) return;
          float* const sums = scratch.grads;
          pass_.point(x_dropped, block, column, rows);
          accumulate(of, block, rows, pass_.dtype, low_grad(0, block.first), sums,
                     grad(kGateA, of.expert) + column, cols, pass_.hidden);
          accumulate(of, block, rows, pass_.dtype, low_grad(1, block.first), sums + rank * kPanel,
                     grad(kUpA, of.expert) + column, cols, pass_.hidden);
          pass_.point(grads_TM_, block, column, rows);
          accumulate(of, block, rows, pass_.dtype,
                     weighted(block, pass_.low(2, block.first), scratch), sums + 2 * rank * kPanel,
                     grad(kDownB, of.expert) + column * rank, cols, 0);
        });
  }

  MoePass& pass_;
  const MoeLora& lora_;
  ConstRows grad_out_;
  Rows grad_x_;
  float* grad_routing_;
  const MoeLoraGrads& grads_;
  ValueRows gate_up_;
  ValueRows grads_TM_;
  std::byte* gathered_ = nullptr;
  std::byte* dropped_ = nullptr;
  float* dots_ = nullptr;       // [columns][pairs]
  float* low_grads_ = nullptr;  // [3][pairs][rank]
};

}  // namespace

void SavedMoe::gradients(ConstRows grad_out_TM, Rows grad_x_TM, float* grad_routing_TK,
                         const MoeLoraGrads& grads) {
  ThreadPool::Session session(ThreadPool::instance());
  MoePass pass(*this, session);
  session.prepare_thread_scratch(pass.thread_floats());
  if (recompute_)
    gate_up_ =
        AlignedBuffer(static_cast<std::size_t>(pairs_.count() * pass.pair_stride + kReadBehind));
  Backward backward(pass, grad_out_TM, grad_x_TM, grad_routing_TK, grads,
                    {gate_up_.data(), pass.pair_stride, false});
  backward.carve(session.shared_scratch<std::byte>(backward.carve(nullptr)));
  const ValueRows x_dropped = pass.dropped_x(backward.dropped());
  if (recompute_)
    pass.gate_and_up(pass.for_products({x_.data(), pass.x_stride, true}, backward.gathered()),
                     x_dropped, {gate_up_.data(), pass.pair_stride, false}, {});
  backward.run(x_dropped);
  x_ = AlignedBuffer();
  gate_up_ = AlignedBuffer();
  low_ = AlignedBuffer();
}

}  // namespace inlay::kernels
