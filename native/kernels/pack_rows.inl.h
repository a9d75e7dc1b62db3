// Activations to the operand of a format. Plain loops that the compiler vectorises; all operations
// are exact or rounded element by element, so that the result is the same on every ISA.
// Included inside an anonymous namespace: see isa/*.cpp.

inline void bf16_row(const float* x, int64_t k, int64_t padded, uint16_t* out) {
  for (int64_t i = 0; i < k; ++i) out[i] = to_bf16(x[i]);
  for (int64_t i = k; i < padded; ++i) out[i] = 0;
}

// One group: int8 values, their scale, and as result their sum. `x` has n values, the rest of the
// group is zero.
inline int32_t int8_group(const float* x, int64_t n, int64_t group, int8_t* out, float* scale) {
  int32_t largest = 0;  // magnitudes order like their bits
  for (int64_t i = 0; i < n; ++i) {
    int32_t bits;
    __builtin_memcpy(&bits, x + i, 4);
    bits &= 0x7fffffff;
    largest = bits > largest ? bits : largest;
  }
  float magnitude;
  __builtin_memcpy(&magnitude, &largest, 4);
  constexpr int32_t kInfinity = 0x7f800000;
  // Below 1e-35 the factor would overflow; such a group is zero.
  const bool usable = largest < kInfinity && magnitude >= 1e-35f;
  const float factor = usable ? 127.0f / magnitude : 0.0f;
  int32_t total = 0;
  if (usable) {
    for (int64_t i = 0; i < n; ++i) {
      // Adding 1.5 * 2^23 leaves the nearest whole number, ties to even, in the low bits.
      const float shifted = x[i] * factor + 12582912.0f;
      int32_t bits;
      __builtin_memcpy(&bits, &shifted, 4);
      const int8_t q = static_cast<int8_t>(bits);
      out[i] = q;
      total += q;
    }
  } else {
    for (int64_t i = 0; i < n; ++i) out[i] = 0;
  }
  for (int64_t i = n; i < group; ++i) out[i] = 0;
  *scale = usable ? magnitude / 127.0f : largest < kInfinity ? 0.0f : __builtin_nanf("");
  return total;
}

inline void pack_rows(const PackRows& p, int32_t bias8) {
  const PanelLayout panel = panel_layout(p.format, p.k);
  const RowLayout layout = row_layout(p.format, p.k);
  const int32_t bias = info(p.format).bits == 8 ? bias8 : info(p.format).bias;
  for (int64_t r = 0; r < p.rows; ++r) {
    const float* x = p.x + r * p.x_stride;
    std::byte* out = p.out + r * p.out_stride;
    if (info(p.format).operand == Operand::kBf16) {
      bf16_row(x, p.k, panel.k, reinterpret_cast<uint16_t*>(out));
      continue;
    }
    float* scales = reinterpret_cast<float*>(out + layout.scales);
    for (int64_t g = 0; g < panel.groups; ++g) {
      const int64_t first = g * panel.group_k;
      const int64_t left = p.k - first;
      const int32_t sum =
          int8_group(x + first, left < panel.group_k ? left : panel.group_k, panel.group_k,
                     reinterpret_cast<int8_t*>(out) + first, scales + g);
      if (has_zeros(p.format) || has_minimums(p.format))
        reinterpret_cast<float*>(out + layout.sums)[g] = static_cast<float>(sum);
      else
        reinterpret_cast<int32_t*>(out + layout.sums)[g] = -bias * sum;
    }
  }
}
