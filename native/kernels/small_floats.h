// The small floats of weights, e4m3 and e2m1 (OCP, without infinities; e4m3 has NaNs), and the
// scales of formats as their stored bits.
//
// Only plain structs and functions with internal linkage: ISA files include this header.
#pragma once

#include <cstdint>

#include "bf16.h"
#include "formats.h"

namespace inlay::kernels {

// A sign, an exponent and bits of mantissa, in the low bits of a byte: its code.
struct SmallFloat {
  uint32_t mantissa;  // bits
  uint32_t sign;      // bit
  uint32_t largest;   // code of the largest number
  uint32_t offset;    // what makes a code that is not subnormal the high bits of an fp32
  float normal;       // the smallest that is not subnormal
  float unit;         // of subnormal ones
};
static constexpr SmallFloat kE4m3 = {3, 0x80, 0x7e, 120 << 3, 0x1p-6f, 0x1p-9f};
static constexpr SmallFloat kE2m1 = {1, 0x8, 0x7, 126 << 1, 1.0f, 0.5f};

static constexpr float value_of_code(const SmallFloat& f, uint32_t code) {
  const uint32_t size = code & (f.sign - 1);
  const float magnitude = size >> f.mantissa == 0
                              ? static_cast<float>(size) * f.unit
                              : __builtin_bit_cast(float, (size + f.offset) << (23 - f.mantissa));
  return (code & f.sign) != 0 ? -magnitude : magnitude;
}

// bf16 of all codes; of e2m1 twice.
struct Bf16OfE4m3 {
  uint16_t bits[256];
};
struct Bf16OfE2m1 {
  uint16_t bits[32];
};
template <typename Table>
static constexpr Table bf16_table(const SmallFloat& f) {
  Table table{};
  uint32_t code = 0;
  for (uint16_t& bits : table.bits) {
    bits = static_cast<uint16_t>(__builtin_bit_cast(uint32_t, value_of_code(f, code)) >> 16);
    code = (code + 1) & (2 * f.sign - 1);
  }
  return table;
}
alignas(64) static constexpr Bf16OfE4m3 kBf16OfE4m3 = bf16_table<Bf16OfE4m3>(kE4m3);
alignas(64) static constexpr Bf16OfE2m1 kBf16OfE2m1 = bf16_table<Bf16OfE2m1>(kE2m1);

// What vectors look up by four bits: twice an e2m1 with 12 added, and ggml's numbers of IQ4 with
// 128.
struct Bytes16 {
  alignas(16) uint8_t at[16];
};
static constexpr Bytes16 kE2m1Numbers = {
    {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0}};
static constexpr Bytes16 kIq4Numbers = {
    {1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241}};

// The small float of a format that has one.
static constexpr const SmallFloat& small_float(Format format) {
  return info(format).bits == 8 ? kE4m3 : kE2m1;
}

static constexpr bool has_small_floats(Format format) {
  return info(format).operand == Operand::kBf16 && info(format).group != 0;
}

// Of zero points, in which a word of kBf16AndZero counts.
static constexpr float kZeroUnit = 1.0f / 256;

static inline float zero_of(uint32_t word) {
  return static_cast<float>(static_cast<int16_t>(word)) * kZeroUnit;
}

// The largest magnitude of a weight whose scale is 1, of formats with scales and no zero points.
static constexpr float largest_weight(Format format) {
  return has_small_floats(format) ? value_of_code(small_float(format), small_float(format).largest)
                                  : static_cast<float>(info(format).bias);
}

static inline float value_of_scale(Scale scale, uint32_t bits) {
  if (scale == Scale::kBf16) return from_bf16(static_cast<uint16_t>(bits));
  if (scale == Scale::kF32) return __builtin_bit_cast(float, bits);
  if (scale == Scale::kBf16AndZero) return __builtin_bit_cast(float, bits & 0xffff0000u);
  // 2^(bits - 127), the lowest one subnormal; 255 is a NaN.
  return __builtin_bit_cast(float, bits == 255 ? 0x7fc00000u : bits == 0 ? 0x400000u : bits << 23);
}

static constexpr uint32_t nan_scale(Scale scale) {
  return scale == Scale::kBf16 ? 0x7fc0 : scale == Scale::kE8m0 ? 255 : 0x7fc00000;
}

// Whether a code at an e8m0 scale is not 0 and subnormal in bf16. Such weights are stored as 0:
// kernels move exponents as whole numbers.
static constexpr bool vanishes(uint32_t code, uint32_t scale) {
  const uint32_t size = code & 7;
  return size != 0 && (size == 1 ? 0u : size < 4 ? 1u : size < 6 ? 2u : 3u) + scale < 2;
}

}  // namespace inlay::kernels
