// Weight formats: what a packed panel and a packed row of activations hold, one row of data per
// format. The layouts depend on the format alone, never on the ISA.
//
// A panel is kPanel output columns. Along K it is a sequence of groups, each
//   [kPanel] scales                 bf16 of integers, fp32 of e4m3, e8m0 of e2m1; with zero points
//                                   a bf16 above an int16 in units of 1 / 256
//   K steps of
//     fp32   [1][kPanel]            one step of K
//     bf16   [kPanel][2]            two steps of K, as vdpbf16ps and AMX tiles want them
//     fp16   [kPanel][2]            two steps of K
//     int8   [kPanel][4]            four steps, as vpdpbusd and AMX tiles want them
//     int4   [kPanel][4]            eight steps: byte i holds step i low and step 4 + i high
//     e4m3   [kPanel][4]            four steps, in the order 0, 2, 1, 3
//     e2m1   [kPanel][4]            eight steps, from the lowest four bits on: 0, 2, 4, 6, 1, 3, 5,
//     7
// Integers are stored unsigned, q + bias; with a zero point they stand for (q - zero) * scale. K is
// padded with zero weights (codes of 0, which meet activations of 0), columns past N have scale (or
// value) zero. The steps of small floats lie so that each half of a word has one of a pair of
// steps below the other: taken apart into bf16, they become words of bf16 panels.
//
// A packed row of activations is [K] bf16 or int8, then per group its fp32 scale, then per group
// -bias * (sum of its int8 values), which turns a product with biased weights into one with q; of
// formats with zero points or minimums, the sum as fp32. Rows lie an odd number of cache lines
// apart, or those of a power of two would share a few sets of a cache.
//
// Formats named after types of ggml hold that type's blocks, bit by bit. A panel is
//   [blocks][kPanel]                     two bytes that are left when a block is cut into words
//   [kPanel / kStrip][blocks][words][kStrip]   words of four bytes, in the order of the block
// so that few rows read the blocks of a strip of columns from end to end. What the bits mean is
// written in blocks.inl.h. Integers and scales are made from a block when it is used; activations
// have a scale for each `group`.
//
// Only plain structs and functions with internal linkage: ISA files include this header.
#pragma once

#include <cstddef>
#include <cstdint>

#include "bf16.h"

namespace inlay::kernels {

constexpr int64_t kPanel = 64;
constexpr int64_t kStrip = 16;  // columns of a panel whose blocks lie together

enum class Format : int32_t {
  kF32,
  kBf16,
  kF16,
  kI8,
  kI8G32,
  kF8G128,
  kU4G32,
  kI4G128,
  kI4G64,
  kI4G32,
  kMxF4,
  kQ8_0,
  kQ6K,
  kQ5_1,
  kQ5_0,
  kQ5K,
  kQ4_1,
  kQ4_0,
  kQ4K,
  kIq4Nl,
  kIq4Xs,
  kNvFp4,
  kQ3K,
  kIq3S,
  kIq3Xxs,
  kQ2K,
  kIq2S,
  kIq2Xs,
  kIq2Xxs,
  kTq2_0,
  kTq1_0,
  kIq1M,
  kIq1S
};
// kInBlock: a block's bits say the scales, with kInBlockAndMinimum a number that is added, too.
enum class Scale : int32_t {
  kNone,
  kBf16,
  kF32,
  kE8m0,
  kBf16AndZero,
  kInBlock,
  kInBlockAndMinimum
};
enum class Operand : int32_t { kF32, kBf16, kI8 };  // what activations are packed to

// A block of a type of ggml. It has a number of whole words and, from `half_at` on, two bytes more;
// or none, where that is kNoHalf.
struct BlockInfo {
  int32_t k = 0;
  int32_t bytes = 0;
  int32_t half_at = 0;
};
constexpr int32_t kNoHalf = -1;

struct FormatInfo {
  const char* name;
  Operand operand;
  int32_t bits;        // per weight; of blocks: of the integers that are made from them
  int32_t bias;        // of the integers
  int32_t group;       // K per scale; 0: no scales, kWholeRow: one scale for all of K
  int32_t k_multiple;  // K is padded to a multiple of this
  Scale scale;
  BlockInfo block{};
};

constexpr int32_t kWholeRow = -1;
constexpr FormatInfo kFormats[] = {
    {"float32", Operand::kF32, 32, 0, 0, 1, Scale::kNone},
    {"bfloat16", Operand::kBf16, 16, 0, 0, 32, Scale::kNone},
    {"float16", Operand::kF32, 16, 0, 0, 2, Scale::kNone},
    {"int8", Operand::kI8, 8, 128, kWholeRow, 64, Scale::kBf16},
    {"int8:g32", Operand::kI8, 8, 128, 32, 32, Scale::kBf16},
    {"fp8:g128", Operand::kBf16, 8, 0, 128, 128, Scale::kF32},
    {"uint4:g32", Operand::kI8, 4, 0, 32, 32, Scale::kBf16AndZero},
    {"int4:g128", Operand::kI8, 4, 8, 128, 128, Scale::kBf16},
    {"int4:g64", Operand::kI8, 4, 8, 64, 64, Scale::kBf16},
    {"int4:g32", Operand::kI8, 4, 8, 32, 32, Scale::kBf16},
    {"mxfp4", Operand::kBf16, 4, 0, 32, 32, Scale::kE8m0},
    {"q8_0", Operand::kI8, 8, 128, 32, 32, Scale::kInBlock, {32, 34, 0}},
    {"q6_k", Operand::kI8, 6, 32, 16, 256, Scale::kInBlock, {256, 210, 208}},
    {"q5_1", Operand::kI8, 5, 0, 32, 32, Scale::kInBlockAndMinimum, {32, 24, kNoHalf}},
    {"q5_0", Operand::kI8, 5, 16, 32, 32, Scale::kInBlock, {32, 22, 0}},
    {"q5_k", Operand::kI8, 5, 0, 32, 256, Scale::kInBlockAndMinimum, {256, 176, kNoHalf}},
    {"q4_1", Operand::kI8, 4, 0, 32, 32, Scale::kInBlockAndMinimum, {32, 20, kNoHalf}},
    {"q4_0", Operand::kI8, 4, 8, 32, 32, Scale::kInBlock, {32, 18, 0}},
    {"q4_k", Operand::kI8, 4, 0, 32, 256, Scale::kInBlockAndMinimum, {256, 144, kNoHalf}},
    {"iq4_nl", Operand::kI8, 8, 128, 32, 32, Scale::kInBlock, {32, 18, 0}},
    {"iq4_xs", Operand::kI8, 8, 128, 32, 256, Scale::kInBlock, {256, 136, kNoHalf}},
    {"nvfp4", Operand::kI8, 5, 12, 16, 64, Scale::kInBlock, {64, 36, kNoHalf}},
    {"q3_k", Operand::kI8, 3, 4, 16, 256, Scale::kInBlock, {256, 110, 108}},
    {"iq3_s", Operand::kI8, 7, 64, 32, 256, Scale::kInBlock, {256, 110, 0}},
    {"iq3_xxs", Operand::kI8, 7, 64, 32, 256, Scale::kInBlock, {256, 98, 0}},
    {"q2_k", Operand::kI8, 2, 0, 16, 256, Scale::kInBlockAndMinimum, {256, 84, kNoHalf}},
    {"iq2_s", Operand::kI8, 7, 64, 16, 256, Scale::kInBlock, {256, 82, 0}},
    {"iq2_xs", Operand::kI8, 7, 64, 16, 256, Scale::kInBlock, {256, 74, 0}},
    {"iq2_xxs", Operand::kI8, 7, 64, 32, 256, Scale::kInBlock, {256, 66, 0}},
    {"tq2_0", Operand::kI8, 2, 1, 32, 256, Scale::kInBlock, {256, 66, 64}},
    {"tq1_0", Operand::kI8, 2, 1, 32, 256, Scale::kInBlock, {256, 54, 52}},
    {"iq1_m", Operand::kI8, 5, 16, 16, 256, Scale::kInBlock, {256, 56, kNoHalf}},
    {"iq1_s", Operand::kI8, 5, 16, 32, 256, Scale::kInBlock, {256, 50, 0}},
};

// Whole rows are summed in int32: 255 * 127 * K must stay below 2^31.
constexpr int64_t kMaxWholeRow = 65536;

static constexpr const FormatInfo& info(Format format) {
  return kFormats[static_cast<int32_t>(format)];
}

static constexpr bool has_zeros(Format format) { return info(format).scale == Scale::kBf16AndZero; }

static constexpr bool has_blocks(Format format) { return info(format).block.k != 0; }

static constexpr bool has_minimums(Format format) {
  return info(format).scale == Scale::kInBlockAndMinimum;
}

// Of a format with scales of its own beside its integers or codes.
static constexpr int64_t bytes_of(Scale scale) {
  constexpr int64_t kBytes[] = {0, 2, 4, 1, 4, 0, 0};
  return kBytes[static_cast<int32_t>(scale)];
}

static constexpr int64_t round_up(int64_t n, int64_t step) { return (n + step - 1) / step * step; }

struct PanelLayout {
  Format format;
  int64_t k;             // padded
  int64_t groups;        // 1 for formats without groups
  int64_t group_k;       // K of a group
  int64_t scale_bytes;   // before the data of each group
  int64_t group_bytes;   // 0 where the panel has blocks
  int64_t blocks;        // of a column; 0 where it has none
  int64_t halves_bytes;  // before the words of blocks
  int64_t panel_bytes;
};

static constexpr PanelLayout panel_layout(Format format, int64_t k) {
  const FormatInfo& f = info(format);
  PanelLayout layout{};
  layout.format = format;
  layout.k = round_up(k, f.k_multiple);
  layout.group_k = f.group > 0 ? f.group : layout.k;
  layout.groups = layout.k / layout.group_k;
  if (f.block.k != 0) {
    layout.blocks = layout.k / f.block.k;
    layout.halves_bytes = f.block.half_at == kNoHalf ? 0 : layout.blocks * kPanel * 2;
    layout.panel_bytes = layout.blocks * kPanel * f.block.bytes;
    return layout;
  }
  layout.scale_bytes = kPanel * bytes_of(f.scale);
  layout.group_bytes = layout.scale_bytes + layout.group_k * kPanel * f.bits / 8;
  layout.panel_bytes = layout.groups * layout.group_bytes;
  return layout;
}

// Where a panel with blocks has one column's, from its beginning on: two bytes, and words kStrip
// apart.
struct BlockPlace {
  int64_t half;
  int64_t words;
};
static constexpr BlockPlace block_place(const PanelLayout& layout, int64_t block, int64_t column) {
  const int64_t words = info(layout.format).block.bytes / 4;
  const int64_t before = (column / kStrip * layout.blocks + block) * words * kStrip;
  return {(block * kPanel + column) * 2, layout.halves_bytes + (before + column % kStrip) * 4};
}

struct RowLayout {
  int64_t scales;     // offset of the scales in bytes
  int64_t sums;       // offset of the sums
  int64_t row_bytes;  // an odd multiple of 64
};

static constexpr RowLayout row_layout(Format format, int64_t k) {
  const PanelLayout panel = panel_layout(format, k);
  const Operand operand = info(format).operand;
  const int64_t element = operand == Operand::kF32 ? 4 : operand == Operand::kBf16 ? 2 : 1;
  RowLayout layout{};
  layout.scales = round_up(panel.k * element, 64);
  const int64_t groups = operand == Operand::kI8 ? round_up(panel.groups * 4, 64) : 0;
  layout.sums = layout.scales + groups;
  layout.row_bytes = round_up(layout.sums + groups - 64, 128) + 64;
  return layout;
}

}  // namespace inlay::kernels
