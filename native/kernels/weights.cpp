#include "weights.h"

#include <algorithm>
#include <bit>

#include "thread_pool.h"

namespace inlay::kernels {
namespace {

float widen(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

uint16_t narrow(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

template <typename Source>
float as_float(Source x) {
  if constexpr (sizeof(Source) == 2)
    return widen(x);
  else
    return x;
}

template <typename Source>
uint16_t as_bf16(Source x) {
  if constexpr (sizeof(Source) == 2)
    return x;
  else
    return narrow(x);
}

// K steps packed at a time: 16 KiB of an fp32 panel, which stays in L1 while its 64 columns are
// filled one after the other.
constexpr int64_t kPackSteps = 64;

// Steps [begin, end) of one source row into one column of a panel. begin is even.
template <typename Source>
void pack_steps(const Source* row, int64_t begin, int64_t end, DType dtype, int64_t column,
                std::byte* panel) {
  if (dtype == DType::kF32) {
    float* target = reinterpret_cast<float*>(panel) + column;
    for (int64_t i = begin; i < end; ++i) target[i * kPanel] = as_float(row[i]);
  } else {
    uint16_t* target = reinterpret_cast<uint16_t*>(panel) + 2 * column;
    for (int64_t i = begin; i < end; ++i) target[i / 2 * 2 * kPanel + i % 2] = as_bf16(row[i]);
  }
}

// Source rows [first, first + count) become columns [column, column + count) of a panel.
void pack_columns(const SourceMatrix& source, int64_t first, int64_t count, DType dtype,
                  int64_t column, std::byte* panel) {
  for (int64_t begin = 0; begin < source.cols; begin += kPackSteps) {
    const int64_t end = std::min(begin + kPackSteps, source.cols);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t offset = (first + i) * source.row_stride;
      if (source.dtype == DType::kF32)
        pack_steps(static_cast<const float*>(source.data) + offset, begin, end, dtype, column + i,
                   panel);
      else
        pack_steps(static_cast<const uint16_t*>(source.data) + offset, begin, end, dtype,
                   column + i, panel);
    }
  }
}

int64_t gate_up_bytes(int64_t intermediate, int64_t hidden, DType dtype) {
  return (intermediate + ExpertWeights::kHalf - 1) / ExpertWeights::kHalf *
         panel_bytes(hidden, dtype);
}

}  // namespace

LinearWeight::LinearWeight(int64_t out_features, int64_t in_features, DType dtype)
    : out_features_(out_features),
      in_features_(in_features),
      dtype_(dtype),
      memory_(
          static_cast<std::size_t>(panel_count(out_features) * panel_bytes(in_features, dtype))) {}

void LinearWeight::set_rows(int64_t first, const SourceMatrix& source) {
  ThreadPool::Session session(ThreadPool::instance());
  const int64_t first_panel = first / kPanel;
  const int64_t end = first + source.rows;
  session.parallel_for(panel_count(end) - first_panel, [&](int64_t item, int) {
    const int64_t index = first_panel + item;
    std::byte* panel = memory_.data() + index * panel_bytes(in_features_, dtype_);
    const int64_t begin = std::max(first, index * kPanel);
    const int64_t count = std::min(end, (index + 1) * kPanel) - begin;
    pack_columns(source, begin - first, count, dtype_, begin - index * kPanel, panel);
  });
}

void LinearWeight::unpack(void* target_NK) const {
  for (int64_t n = 0; n < out_features_; ++n) {
    const std::byte* source = panel(n / kPanel);
    const int64_t column = n % kPanel;
    for (int64_t k = 0; k < in_features_; ++k) {
      if (dtype_ == DType::kF32)
        static_cast<float*>(target_NK)[n * in_features_ + k] =
            reinterpret_cast<const float*>(source)[k * kPanel + column];
      else
        static_cast<uint16_t*>(target_NK)[n * in_features_ + k] =
            reinterpret_cast<const uint16_t*>(source)[(k / 2 * kPanel + column) * 2 + k % 2];
    }
  }
}

ExpertWeights::ExpertWeights(int64_t num_experts, int64_t hidden, int64_t intermediate, DType dtype)
    : num_experts_(num_experts),
      hidden_(hidden),
      intermediate_(intermediate),
      dtype_(dtype),
      gate_up_(static_cast<std::size_t>(num_experts * gate_up_bytes(intermediate, hidden, dtype))),
      down_(static_cast<std::size_t>(num_experts * panel_count(hidden) *
                                     panel_bytes(intermediate, dtype))) {}

void ExpertWeights::set(int64_t expert, const SourceMatrix& gate_FM, const SourceMatrix& up_FM,
                        const SourceMatrix& down_MF) {
  ThreadPool::Session session(ThreadPool::instance());
  session.parallel_for(gate_up_panels() + down_panels(), [&](int64_t item, int) {
    if (item < gate_up_panels()) {
      std::byte* panel = const_cast<std::byte*>(gate_up_panel(expert, item));
      const int64_t count = std::min(kHalf, intermediate_ - item * kHalf);
      pack_columns(gate_FM, item * kHalf, count, dtype_, 0, panel);
      pack_columns(up_FM, item * kHalf, count, dtype_, kHalf, panel);
    } else {
      const int64_t index = item - gate_up_panels();
      std::byte* panel = const_cast<std::byte*>(down_panel(expert, index));
      pack_columns(down_MF, index * kPanel, std::min(kPanel, hidden_ - index * kPanel), dtype_, 0,
                   panel);
    }
  });
}

}  // namespace inlay::kernels
