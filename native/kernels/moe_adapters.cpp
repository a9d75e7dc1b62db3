#include "moe_adapters.h"

#include "kernel_table.h"

namespace inlay::kernels {

int64_t MoeAdapters::max_rank(const Moe& p) {
  int64_t rank = 0;
  for (const ExpertRows& of : p.adapters)
    for (const ExpertAdapter* adapter : {of.experts, of.shared})
      if (adapter != nullptr) rank = std::max(rank, adapter->max_rank());
  return rank;
}

void MoeAdapters::take_inputs(ThreadPool::Session& session, const KernelTable& table,
                              const Block* blocks, int64_t num_blocks) const {
  // The first shard has the pairs of all experts.
  const int64_t of_shard = std::count_if(blocks, blocks + num_blocks,
                                         [](const Block& block) { return block.shard == 0; });
  session.parallel_for(of_shard, [&](int64_t item, int) {
    const Block& block = blocks[item];
    const int64_t expert = experts_.local(block.expert);
    for_each(block, [&](const ExpertAdapter& adapter, int64_t first, int64_t end) {
      const std::byte* rows[kMaxRows];
      for (int64_t pair = first; pair < end; ++pair)
        rows[pair - first] =
            reinterpret_cast<const std::byte*>(p_.x_TM.row(first_token_ + pairs_.token[pair]));
      for (const auto which : {ExpertAdapter::kGate, ExpertAdapter::kUp}) {
        const LowRank& m = adapter.pair(expert, which);
        if (m.rank > 0)
          table.vectors.low_rank_dot({rows, end - first, DType::kF32, m.a.data, p_.x_TM.cols,
                                      m.rank, p_.x_TM.cols, m.scale, false, low(which, first),
                                      rank_, m.a.dtype});
      }
    });
  });
}

void MoeAdapters::add_gate_up(const KernelTable& table, const Block& block, int64_t column,
                              float* c) const {
  const int64_t expert = experts_.local(block.expert);
  for_each(block, [&](const ExpertAdapter& adapter, int64_t first, int64_t end) {
    for (const auto which : {ExpertAdapter::kGate, ExpertAdapter::kUp}) {
      const LowRank& m = adapter.pair(expert, which);
      if (m.rank > 0)
        table.vectors.low_rank_add(
            {c + (first - block.first_row) * kPanel + which * ExpertWeights::kHalf, end - first,
             LowRank::kPanels, low(which, first), rank_, m.b_panel(column), m.rank, m.b.dtype});
    }
  });
}

void MoeAdapters::take_hidden(const KernelTable& table, const Block& block, const float* values,
                              int64_t stride) const {
  const ExpertWeights::Shard& shard = *experts_.shard(block.expert, block.shard);
  const int64_t intermediate = experts_.weights(block.expert).intermediate();
  for_each(block, [&](const ExpertAdapter& adapter, int64_t first, int64_t end) {
    const LowRank& m = adapter.pair(experts_.local(block.expert), ExpertAdapter::kDown);
    if (m.rank == 0) return;
    const std::byte* rows[kMaxRows];
    for (int64_t pair = first; pair < end; ++pair)
      rows[pair - first] =
          reinterpret_cast<const std::byte*>(values + (pair - block.first_row) * stride);
    table.vectors.low_rank_dot({rows, end - first, DType::kF32, m.a.at(shard.first), intermediate,
                                m.rank, shard.width, m.scale, false,
                                low(down_low(block.shard), first), rank_, m.a.dtype});
  });
}

void MoeAdapters::add_down(const KernelTable& table, const Block& block, int64_t first_panel,
                           int64_t panels, float* c) const {
  const int64_t rows = block.end_row - block.first_row;
  for_each(block, [&](const ExpertAdapter& adapter, int64_t first, int64_t end) {
    const LowRank& m = adapter.pair(experts_.local(block.expert), ExpertAdapter::kDown);
    if (m.rank == 0) return;
    for (int64_t i = 0; i < panels; ++i)
      for (int64_t half = 0; half < kPanel; half += LowRank::kPanels)
        table.vectors.low_rank_add(
            {c + (i * rows + first - block.first_row) * kPanel + half, end - first,
             LowRank::kPanels, low(down_low(block.shard), first), rank_,
             m.b_panel((first_panel + i) * kPanel + half), m.rank, m.b.dtype});
  });
}

}  // namespace inlay::kernels
