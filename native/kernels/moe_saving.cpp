// The forward pass of training: gate and up products by expert and columns, then down products by
// columns of the output, each of which adds the experts in ascending order.
#include <algorithm>
#include <cstring>
#include <span>

#include "moe_pass.h"
#include "moe_training.h"

namespace inlay::kernels {
namespace {

ChosenPairs sorted_pairs(const Moe& p) {
  const int64_t num_experts = p.experts->num_experts(), choices = p.x_TM.rows * p.top_k;
  ChosenPairs pairs;
  std::vector<int64_t> next(static_cast<std::size_t>(num_experts) + 1, 0);
  for (int64_t i = 0; i < choices; ++i)
    if (p.expert_ids_TK[i] >= 0) ++next[static_cast<std::size_t>(p.expert_ids_TK[i]) + 1];
  for (std::size_t e = 1; e < next.size(); ++e) next[e] += next[e - 1];
  pairs.begin = next;
  const auto count = static_cast<std::size_t>(next.back());
  pairs.token.resize(count);
  pairs.weight.resize(count);
  pairs.choice.resize(count);
  for (int64_t i = 0; i < choices; ++i) {
    if (p.expert_ids_TK[i] < 0) continue;
    const auto place =
        static_cast<std::size_t>(next[static_cast<std::size_t>(p.expert_ids_TK[i])]++);
    pairs.token[place] = static_cast<int32_t>(i / p.top_k);
    pairs.weight[place] = p.routing_TK[i];
    pairs.choice[place] = i;
  }
  return pairs;
}

// scale A h of the down matrices, with dropped features left out.
void low_rank_of_hidden(const MoePass& pass, ValueRows h) {
  const MoeLora& lora = pass.saved.lora();
  pass.session.parallel_for(
      static_cast<int64_t>(pass.blocks.size()), [&](int64_t item, int thread) {
        const MoePass::RowBlock& block = pass.blocks[static_cast<std::size_t>(item)];
        const MoePass::Scratch scratch(pass, thread);
        const std::byte* rows[kMaxRows];
        DType dtype = pass.dtype;
        for (std::size_t s = 0; s < pass.shard_at.size(); ++s) {
          const ExpertWeights::Shard& shard = pass.shard(static_cast<int64_t>(s));
          pass.point(h, block, pass.shard_at[s], rows);
          if (lora.dropout.drops()) {
            for (int64_t r = 0; r < block.rows(); ++r) {
              float* const values = scratch.values + r * shard.width;
              if (pass.dtype == DType::kF32)
                std::memcpy(values, rows[r], static_cast<std::size_t>(shard.width) * sizeof(float));
              else
                for (int64_t i = 0; i < shard.width; ++i)
                  values[i] = from_bf16(reinterpret_cast<const uint16_t*>(rows[r])[i]);
              lora.dropout.apply(1 + static_cast<uint64_t>(block.expert),
                                 pass.pairs.token[static_cast<std::size_t>(block.first + r)],
                                 shard.first, shard.width, values);
              rows[r] = reinterpret_cast<const std::byte*>(values);
            }
            dtype = DType::kF32;
          }
          pass.table.vectors.low_rank_dot({rows, block.rows(), dtype,
                                           pass.matrix(kDownA, block.expert) + shard.first,
                                           pass.weights.intermediate(), lora.rank, shard.width,
                                           lora.scale, s > 0, pass.low(2, block.first), lora.rank});
        }
      });
}

void down(const MoePass& pass, ValueRows h, Rows out) {
  const int64_t rank = pass.saved.lora().rank;
  pass.session.parallel_for(panel_count(pass.hidden), [&](int64_t item, int thread) {
    const int64_t column = item * kPanel, cols = std::min(kPanel, pass.hidden - column);
    const MoePass::Scratch scratch(pass, thread);
    for (int64_t t = 0; t < out.rows; ++t) std::fill_n(out.row(t) + column, cols, 0.0f);
    for (const MoePass::Chosen& of : pass.chosen) {
      if (pass.has_lora) {
        std::fill_n(scratch.matrix[0], rank * kPanel, 0.0f);
        const float* b = pass.matrix(kDownB, of.expert) + column * rank;
        for (int64_t i = 0; i < cols; ++i)
          for (int64_t j = 0; j < rank; ++j) scratch.matrix[0][j * kPanel + i] = b[i * rank + j];
      }
      // Of the next expert, while this one's last rows are multiplied.
      const auto* const after = &of + 1;
      Fetch next;
      if (&of != &pass.chosen.back())
        next = pass.head_of(pass.shard(0).down_panel(after->expert, item), pass.shard(0).down);
      for (std::size_t s = 0; s < pass.shard_at.size(); ++s) {
        const ExpertWeights::Shard& shard = pass.shard(static_cast<int64_t>(s));
        const auto products = [&](std::span<const MoePass::RowBlock> some) {
          pass.multiply_packed(some, h, pass.shard_at[s], shard.down_panel(of.expert, item),
                               shard.down, shard.width, cols, next, scratch);
        };
        pass.for_blocks(of, scratch, products, [&](const MoePass::RowBlock& block, float* c) {
          if (s == 0 && pass.has_lora)
            pass.table.vectors.low_rank_add(
                {c, block.rows(), kPanel, pass.low(2, block.first), rank, scratch.matrix[0], rank});
          float* out_rows[kMaxRows];
          for (int64_t r = 0; r < block.rows(); ++r)
            out_rows[r] =
                out.row(pass.pairs.token[static_cast<std::size_t>(block.first + r)]) + column;
          const float* bias = s == 0 && pass.weights.has_bias()
                                  ? pass.weights.down_bias(of.expert) + column
                                  : nullptr;
          pass.table.vectors.add_weighted_rows(
              {c, bias, block.rows(), cols, pass.pairs.weight.data() + block.first, out_rows});
        });
      }
    }
  });
}

}  // namespace

SavedMoe::SavedMoe(const Moe& p, const MoeLora& lora, bool recompute)
    : weights_(*p.experts),
      lora_(lora),
      activation_(p.activation),
      tokens_(p.x_TM.rows),
      top_k_(p.top_k),
      recompute_(recompute),
      pairs_(sorted_pairs(p)) {
  ThreadPool::Session session(ThreadPool::instance());
  MoePass pass(*this, session);
  const auto buffer = [](int64_t bytes) { return AlignedBuffer(static_cast<std::size_t>(bytes)); };
  x_ = buffer(tokens_ * pass.x_stride + kReadBehind);
  if (!recompute) gate_up_ = buffer(pairs_.count() * pass.pair_stride + kReadBehind);
  low_ = buffer(3 * pairs_.count() * lora_.rank * 4);
  pass.pack(p.x_TM, {x_.data(), pass.x_stride, true});
  session.prepare_thread_scratch(pass.thread_floats());
  const auto carve = [&](std::byte* memory, ValueRows& gathered, ValueRows& dropped, ValueRows& h) {
    Carver carver(memory);
    gathered.data = carver.take<std::byte>(pass.gathered_bytes());
    dropped.data = carver.take<std::byte>(pass.dropped_bytes());
    h = {carver.take<std::byte>(pairs_.count() * pass.h_stride + kReadBehind), pass.h_stride,
         false};
    return carver.taken();
  };
  ValueRows gathered, dropped, h;
  const int64_t bytes = carve(nullptr, gathered, dropped, h);
  carve(session.shared_scratch<std::byte>(bytes), gathered, dropped, h);
  const ValueRows x{x_.data(), pass.x_stride, true};
  pass.gate_and_up(pass.for_products(x, gathered.data), pass.dropped_x(dropped.data),
                   {gate_up_.data(), pass.pair_stride, false}, h);
  if (pass.has_lora) low_rank_of_hidden(pass, h);
  down(pass, h, p.out_TM);
}

int64_t SavedMoe::size_bytes() const {
  return static_cast<int64_t>(x_.size() + gate_up_.size() + low_.size());
}

}  // namespace inlay::kernels
