// Activations of a call, packed once for a format (formats.h), by all threads.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernel_table.h"
#include "operators.h"
#include "thread_pool.h"

namespace inlay::kernels {

struct PackedRows {
  const std::byte* data = nullptr;
  int64_t stride = 0;  // bytes
  const std::byte* row(int64_t index) const { return data + index * stride; }
};

// Bytes that pack() needs for some rows of k columns; none for fp32, which is read in place.
inline int64_t packed_bytes(Format format, int64_t rows, int64_t k) {
  return info(format).operand == Operand::kF32 ? 0 : rows * row_layout(format, k).row_bytes;
}

inline void pack_some(const KernelTable& table, ConstRows x, Format format, int64_t first,
                      int64_t count, std::byte* memory) {
  const int64_t stride = row_layout(format, x.cols).row_bytes;
  table.pack_rows({x.row(first), x.stride, count, x.cols, format, memory + first * stride, stride});
}

// The rows as the products of a format read them. `memory` holds packed_bytes().
inline PackedRows pack(ThreadPool::Session& session, const KernelTable& table, ConstRows x,
                       Format format, std::byte* memory) {
  if (info(format).operand == Operand::kF32)
    return {reinterpret_cast<const std::byte*>(x.data), x.stride * 4};
  // About 2 us of one core.
  constexpr int64_t kItemValues = 16384;
  const int64_t rows_per_item = kItemValues / x.cols + 1;
  session.parallel_for((x.rows + rows_per_item - 1) / rows_per_item, [&](int64_t item, int) {
    const int64_t first = item * rows_per_item;
    pack_some(table, x, format, first, std::min(rows_per_item, x.rows - first), memory);
  });
  return {memory, row_layout(format, x.cols).row_bytes};
}

}  // namespace inlay::kernels
