// Writing and reading packed panels (layouts in formats.h) column by column.
//
// Whatever the format, a group's data are [steps][kPanel] words of 32 bits, so a source row becomes
// a row of words, and rows of words are transposed into panels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernel_table.h"

namespace inlay::kernels {

// A borrowed row-major matrix; bf16 as its bits.
struct SourceMatrix {
  const char* name;  // of the argument, for messages
  const void* data;
  DType dtype;
  int64_t rows;
  int64_t cols;
  int64_t row_stride;  // elements
};

// A borrowed matrix that is quantised already, with a scale per row and group: an integer in each
// byte with fp32 scales (each with its zero point after it, in formats that have such), an e4m3 in
// each byte with fp32 scales, or two e2m1 in each byte, the first in its low half, with e8m0
// scales.
struct QuantizedMatrix {
  const char* name;
  const char* scales_name;
  const std::byte* q;
  const std::byte* scales;
  int64_t rows;
  int64_t cols;          // weights
  int64_t row_stride;    // bytes
  int64_t scale_stride;  // bytes
};

// A borrowed matrix of blocks of ggml's types (formats.h), in the order of their file.
struct BlockMatrix {
  const char* name;
  const std::byte* data;
  int64_t rows;
  int64_t cols;        // weights, whole blocks
  int64_t row_stride;  // bytes
};

// Of a row of k weights in such a matrix.
constexpr int64_t block_row_bytes(Format format, int64_t k) {
  return k / info(format).block.k * info(format).block.bytes;
}

// Of a row of k weights in a QuantizedMatrix, and of a scale with its zero point.
constexpr int64_t quantized_row_bytes(Format format, int64_t k) {
  return info(format).scale == Scale::kE8m0 ? (k + 1) / 2 : k;
}
constexpr int64_t quantized_scale_bytes(Format format) {
  return info(format).scale == Scale::kE8m0 ? 1 : has_zeros(format) ? 8 : 4;
}

// Columns [first, first + width); first is at the start of a group.
SourceMatrix columns(SourceMatrix source, Format format, int64_t first, int64_t width);
QuantizedMatrix columns(QuantizedMatrix source, Format format, int64_t first, int64_t width);
BlockMatrix columns(BlockMatrix source, Format format, int64_t first, int64_t width);

// Source rows [first, first + count) become columns [column, column + count) of a panel.
template <typename Source>
struct PanelJob {
  const Source* source;
  int64_t first;
  int64_t count;
  std::byte* panel;
  int64_t column;
};

// Runs all jobs on the thread pool. Throws, once all the others are done, NotFiniteError when a row
// is not finite or not in the format, ArgumentError when one of integers that is quantised already
// is out of the format's range.
void pack_panels(Format format, std::span<const PanelJob<SourceMatrix>> jobs);
void pack_panels(Format format, std::span<const PanelJob<QuantizedMatrix>> jobs);
void pack_panels(Format format, std::span<const PanelJob<BlockMatrix>> jobs);

// The weights that kernels use, as fp32: columns [column, column + count) of a panel become rows of
// `target`, k values each.
void unpack_panel(Format format, int64_t k, const std::byte* panel, int64_t column, int64_t count,
                  float* target, int64_t target_stride);
// The same of a format with blocks.
void unpack_blocks(Format format, int64_t k, const std::byte* panel, int64_t column, int64_t count,
                   float* target, int64_t target_stride);

// The matrix as a QuantizedMatrix has it, rows side by side, in a format with scales, on the thread
// pool. Throws NotFiniteError as pack_panels.
void quantize(const SourceMatrix& source, Format format, std::byte* q, std::byte* scales);

}  // namespace inlay::kernels
