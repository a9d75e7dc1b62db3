#include "adapters.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <tuple>
#include <utility>

#include "isa.h"
#include "thread_pool.h"

namespace inlay::kernels {
namespace {

AlignedFloats aligned(int64_t count) {
  void* const memory =
      ::operator new[](static_cast<std::size_t>(count) * sizeof(float), std::align_val_t{64});
  return AlignedFloats(static_cast<float*>(memory));
}

int64_t a_floats(const LowRankSource& source) { return source.rank * source.in; }
int64_t b_floats(const LowRankSource& source) { return round_up(source.out, kPanel) * source.rank; }

AlignedFloats copied_a(const LowRankSource& source) {
  AlignedFloats copy = aligned(a_floats(source));
  std::memcpy(copy.get(), source.a, static_cast<std::size_t>(a_floats(source)) * sizeof(float));
  return copy;
}

AlignedFloats packed_b(const LowRankSource& source) {
  constexpr int64_t kWidth = LowRank::kPanels;
  AlignedFloats packed = aligned(b_floats(source));
  std::fill_n(packed.get(), b_floats(source), 0.0f);
  for (int64_t row = 0; row < source.out; ++row) {
    float* const panel = packed.get() + row / kWidth * source.rank * kWidth;
    for (int64_t j = 0; j < source.rank; ++j)
      panel[j * kWidth + row % kWidth] = source.b[row * source.rank + j];
  }
  return packed;
}

}  // namespace

LinearAdapter::LinearAdapter(std::span<const Source> sources) {
  std::map<std::tuple<const float*, int64_t, int64_t>, const float*> kept_a, kept_b;
  const auto keep = [&](auto& kept, const float* address, int64_t rows, int64_t cols,
                        int64_t floats, auto&& make) {
    const float*& there = kept[{address, rows, cols}];
    if (there == nullptr) {
      memory_.push_back(make());
      there = memory_.back().get();
      size_bytes_ += floats * static_cast<int64_t>(sizeof(float));
    }
    return there;
  };
  for (const Source& source : sources) {
    const LowRankSource& m = source.matrices;
    const float* const a =
        keep(kept_a, m.a, m.rank, m.in, a_floats(m), [&] { return copied_a(m); });
    const float* const b =
        keep(kept_b, m.b, m.out, m.rank, b_floats(m), [&] { return packed_b(m); });
    parts_.push_back({source.x_column, source.out_column, m.in, m.out, {m.rank, m.scale, a, b}});
    x_columns_ = std::max(x_columns_, source.x_column + m.in);
    out_columns_ = std::max(out_columns_, source.out_column + m.out);
    max_rank_ = std::max(max_rank_, m.rank);
  }
}

ExpertAdapter::ExpertAdapter(int64_t num_experts, int64_t hidden, int64_t intermediate)
    : pairs_(static_cast<std::size_t>(num_experts * kMatrices)),
      memory_(2 * pairs_.size()),
      hidden_(hidden),
      intermediate_(intermediate) {}

void ExpertAdapter::set(int64_t expert, Matrix which, const LowRankSource& source) {
  const auto at = static_cast<std::size_t>(expert * kMatrices + which);
  const LowRank& before = pairs_[at];
  if (before.rank > 0) size_bytes_ -= 4 * (source.in + round_up(source.out, kPanel)) * before.rank;
  memory_[2 * at] = copied_a(source);
  memory_[2 * at + 1] = packed_b(source);
  pairs_[at] = {source.rank, source.scale, memory_[2 * at].get(), memory_[2 * at + 1].get()};
  size_bytes_ += 4 * (a_floats(source) + b_floats(source));
  max_rank_ = std::max(max_rank_, source.rank);
}

void add_adapters(ConstRows x_TK, std::span<const LinearRows> rows, Rows out_TN) {
  // Rows of one part at a time by a thread: few, so that all have some, and many share the reading
  // of the matrices.
  struct Item {
    const LinearAdapter::Part* part;
    int64_t first;
    int64_t end;
  };
  constexpr int64_t kLeastRows = 16;
  // About 2 us of one core; less is not worth waking another.
  constexpr int64_t kSerialWork = int64_t{1} << 17;
  const KernelTable& table = selected();
  ThreadPool::Session session(ThreadPool::instance());
  int64_t num_rows = 0, max_rank = 0, work = 0;
  for (const LinearRows& of : rows) {
    num_rows += of.end - of.first;
    max_rank = std::max(max_rank, of.adapter->max_rank());
    for (const LinearAdapter::Part& part : of.adapter->parts())
      work += (of.end - of.first) * part.matrices.rank * (part.in + part.out);
  }
  if (work == 0) return;
  const int64_t most = std::clamp(num_rows / (4 * session.num_threads()), kLeastRows, kMaxRows);
  std::vector<Item> items;
  for (const LinearRows& of : rows)
    for (int64_t first = of.first; first < of.end; first += most)
      for (const LinearAdapter::Part& part : of.adapter->parts())
        items.push_back({&part, first, std::min(first + most, of.end)});
  const int64_t low_floats = round_up(kMaxRows * max_rank, 16);
  session.prepare_thread_scratch(low_floats + kMaxRows * kPanel);

  const auto item_body = [&](int64_t index, int thread) {
    const Item& item = items[static_cast<std::size_t>(index)];
    const LowRank& m = item.part->matrices;
    const int64_t count = item.end - item.first;
    float* const low = session.thread_scratch(thread);
    float* const c = low + low_floats;
    const std::byte* x_rows[kMaxRows];
    for (int64_t r = 0; r < count; ++r)
      x_rows[r] =
          reinterpret_cast<const std::byte*>(x_TK.row(item.first + r) + item.part->x_column);
    table.low_rank_dot({x_rows, count, DType::kF32, m.a, item.part->in, m.rank, item.part->in,
                        m.scale, false, low, m.rank});
    for (int64_t column = 0; column < item.part->out; column += kPanel) {
      std::fill_n(c, count * kPanel, 0.0f);
      for (int64_t half = 0; half < kPanel; half += LowRank::kPanels)
        table.low_rank_add(
            {c + half, count, LowRank::kPanels, low, m.rank, m.b_panel(column + half), m.rank});
      table.store_rows({c, count, std::min(kPanel, item.part->out - column), nullptr, true,
                        out_TN.row(item.first) + item.part->out_column + column, out_TN.stride});
    }
  };
  const auto num_items = static_cast<int64_t>(items.size());
  if (work < kSerialWork)
    for (int64_t item = 0; item < num_items; ++item) item_body(item, 0);
  else
    session.parallel_for(num_items, item_body);
}

}  // namespace inlay::kernels
