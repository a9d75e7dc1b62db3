#include "adapters.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <map>
#include <tuple>
#include <utility>

#include "isa.h"
#include "thread_pool.h"

namespace inlay::kernels {
namespace {

// A copy of a matrix and what it takes.
struct Packed {
  AlignedBytes memory;
  LowRankMatrix matrix;
  int64_t size_bytes;
};

// Value i goes to `place(i)` of `count`; what is between them is 0.
template <typename Place>
Packed packed(std::span<const float> values, int64_t count, const Place& place) {
  const auto lower_half = [](float value) { return std::bit_cast<uint32_t>(value) & 0xffff; };
  const bool bf16 =
      std::all_of(values.begin(), values.end(), [&](float v) { return lower_half(v) == 0; });
  const int64_t size_bytes = count * (bf16 ? 2 : 4);
  const auto size = static_cast<std::size_t>(size_bytes);
  AlignedBytes memory(static_cast<std::byte*>(::operator new[](size, std::align_val_t{64})));
  std::memset(memory.get(), 0, size);
  const LowRankMatrix matrix{memory.get(), bf16 ? DType::kBf16 : DType::kF32};
  for (std::size_t i = 0; i < values.size(); ++i) {
    // The upper half of a value is its bf16.
    const auto bits = std::bit_cast<std::array<std::byte, 4>>(values[i]);
    std::byte* const target =
        memory.get() + (matrix.at(place(static_cast<int64_t>(i))) - matrix.data);
    std::memcpy(target, bits.data() + (bf16 ? 2 : 0), bf16 ? 2 : 4);
  }
  return {std::move(memory), matrix, size_bytes};
}

Packed packed_a(const LowRankSource& source) {
  const int64_t count = source.rank * source.in;
  return packed({source.a, static_cast<std::size_t>(count)}, count, [](int64_t i) { return i; });
}

Packed packed_b(const LowRankSource& source) {
  constexpr int64_t kWidth = LowRank::kPanels;
  const int64_t rank = source.rank;
  return packed({source.b, static_cast<std::size_t>(source.out * rank)},
                round_up(source.out, kPanel) * rank, [rank](int64_t i) {
                  const int64_t row = i / rank;
                  return (row / kWidth * rank + i % rank) * kWidth + row % kWidth;
                });
}

}  // namespace

LinearAdapter::LinearAdapter(std::span<const Source> sources) {
  std::map<std::tuple<const float*, int64_t, int64_t>, LowRankMatrix> kept_a, kept_b;
  const auto keep = [&](auto& kept, const float* address, int64_t rows, int64_t cols, auto&& make) {
    LowRankMatrix& there = kept[{address, rows, cols}];
    if (there.data == nullptr) {
      Packed made = make();
      there = made.matrix;
      memory_.push_back(std::move(made.memory));
      size_bytes_ += made.size_bytes;
    }
    return there;
  };
  for (const Source& source : sources) {
    const LowRankSource& m = source.matrices;
    const LowRankMatrix a = keep(kept_a, m.a, m.rank, m.in, [&] { return packed_a(m); });
    const LowRankMatrix b = keep(kept_b, m.b, m.out, m.rank, [&] { return packed_b(m); });
    parts_.push_back({source.x_column, source.out_column, m.in, m.out, {m.rank, m.scale, a, b}});
    x_columns_ = std::max(x_columns_, source.x_column + m.in);
    out_columns_ = std::max(out_columns_, source.out_column + m.out);
    max_rank_ = std::max(max_rank_, m.rank);
  }
}

ExpertAdapter::ExpertAdapter(int64_t num_experts, int64_t hidden, int64_t intermediate)
    : pairs_(static_cast<std::size_t>(num_experts * kMatrices)),
      memory_(2 * pairs_.size()),
      pair_bytes_(pairs_.size()),
      hidden_(hidden),
      intermediate_(intermediate) {}

void ExpertAdapter::set(int64_t expert, Matrix which, const LowRankSource& source) {
  const auto at = static_cast<std::size_t>(expert * kMatrices + which);
  Packed a = packed_a(source), b = packed_b(source);
  pairs_[at] = {source.rank, source.scale, a.matrix, b.matrix};
  memory_[2 * at] = std::move(a.memory);
  memory_[2 * at + 1] = std::move(b.memory);
  size_bytes_ += a.size_bytes + b.size_bytes - pair_bytes_[at];
  pair_bytes_[at] = a.size_bytes + b.size_bytes;
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
    table.vectors.low_rank_dot({x_rows, count, DType::kF32, m.a.data, item.part->in, m.rank,
                                item.part->in, m.scale, false, low, m.rank, m.a.dtype});
    for (int64_t column = 0; column < item.part->out; column += kPanel) {
      std::fill_n(c, count * kPanel, 0.0f);
      for (int64_t half = 0; half < kPanel; half += LowRank::kPanels)
        table.vectors.low_rank_add({c + half, count, LowRank::kPanels, low, m.rank,
                                    m.b_panel(column + half), m.rank, m.b.dtype});
      table.vectors.store_rows({c, count, std::min(kPanel, item.part->out - column), nullptr, true,
                                out_TN.row(item.first) + item.part->out_column + column,
                                out_TN.stride});
    }
  };
  const auto num_items = static_cast<int64_t>(items.size());
  if (work < kSerialWork)
    for (int64_t item = 0; item < num_items; ++item) item_body(item, 0);
  else
    session.parallel_for(num_items, item_body);
}

}  // namespace inlay::kernels
