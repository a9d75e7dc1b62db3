// bf16 and fp16 as their bits. Only functions with internal linkage: ISA files include this header.
#pragma once

#include <cstdint>

namespace inlay::kernels {

// Nearest, ties to even; a NaN stays one.
static inline uint16_t to_bf16(float value) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, value);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const uint32_t quiet_nan = (bits >> 16) | 0x40u;
  return static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? quiet_nan : rounded);
}

static inline float from_bf16(uint16_t bits) {
  return __builtin_bit_cast(float, static_cast<uint32_t>(bits) << 16);
}

// Nearest, ties to even; what is too large becomes an infinity, a NaN one of those.
static inline uint16_t to_fp16(float value) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, value);
  const uint32_t sign = bits >> 16 & 0x8000u, size = bits & 0x7fffffffu;
  if (size >= 0x477ff000u)
    return static_cast<uint16_t>(sign | (size > 0x7f800000u ? 0x7e00u : 0x7c00u));
  if (size < 0x38800000u)  // subnormal: whole numbers of 2^-24, rounded by the addition
    return static_cast<uint16_t>(
        sign |
        (__builtin_bit_cast(uint32_t, __builtin_bit_cast(float, size) + 0.5f) - 0x3f000000u));
  return static_cast<uint16_t>(sign | (size - 0x38000000u + 0xfffu + (size >> 13 & 1u)) >> 13);
}

static inline float from_fp16(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  const uint32_t size = static_cast<uint32_t>(half & 0x7fffu) << 13;
  if (size < 1u << 23) {
    const float value = static_cast<float>(half & 0x7fffu) * 0x1p-24f;
    return __builtin_bit_cast(float, sign | __builtin_bit_cast(uint32_t, value));
  }
  return __builtin_bit_cast(
      float, sign | (size >= 0x0f800000u ? size + (224u << 23) : size + (112u << 23)));
}

}  // namespace inlay::kernels
