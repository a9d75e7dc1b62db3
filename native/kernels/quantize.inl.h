// Weights to integers or small floats and scales, one row (output column) at a time. `Vec` is the
// vector unit of the including ISA file; nothing here fuses a multiply and an add, and every group
// is summed in ascending order by one lane, so all ISAs give the same bits. Included inside an
// anonymous namespace: see isa/*.cpp.
//
// Relative L2 error of Gaussian weights in rows of 2048: int8 0.83 %, int8:g32 0.54 %, int4:g128
// 9.67 %, int4:g64 8.98 %, int4:g32 8.09 %, uint4:g32 7.05 %. For int4:g32 the largest magnitude at
// 7 gives 9.70 %, at -8 8.40 %, five times as many candidates 8.09 % as well.

constexpr float kRounder = 12582912.0f;  // 1.5 * 2^23: the low byte of x + kRounder is x rounded
constexpr int32_t kInfinityBits = 0x7f800000;
// Groups below this are zero: their scales would leave the range of normal numbers.
constexpr float kSmallestPeak = 0x1p-100f;

inline int32_t float_bits(float x) {
  int32_t bits;
  __builtin_memcpy(&bits, &x, sizeof bits);
  return bits;
}

// Bits of the largest magnitude: at least kInfinityBits when there is a NaN or an infinity.
inline int32_t peak_bits(const float* x, int64_t count) {
  int32_t peak = 0;
  for (int64_t i = 0; i < count; ++i) {
    const int32_t bits = float_bits(x[i]) & 0x7fffffff;
    peak = bits > peak ? bits : peak;
  }
  return peak;
}

// The largest magnitude becomes 127: a bf16 scale is off by at most 2^-9, which makes that 127.25,
// so nothing is clipped. False when a value is not finite.
inline bool quantize_group_8bit(const float* x, int64_t count, int8_t* q, uint32_t* scale) {
  const int32_t bits = peak_bits(x, count);
  if (bits >= kInfinityBits) return false;
  float peak;
  __builtin_memcpy(&peak, &bits, sizeof peak);
  *scale = peak < kSmallestPeak ? 0 : to_bf16(peak / 127.0f);
  const float inverse = *scale == 0 ? 0.0f : 1.0f / from_bf16(static_cast<uint16_t>(*scale));
  for (int64_t i = 0; i < count; ++i)
    q[i] = static_cast<int8_t>(float_bits(x[i] * inverse + kRounder));
  return true;
}

typedef int32_t QuantizeLanes __attribute__((vector_size(4 * Vec::kWidth)));

inline Vec::F choose(QuantizeLanes where, Vec::F a, Vec::F b) {
  const QuantizeLanes bits =
      (where & reinterpret_cast<QuantizeLanes>(a)) | (~where & reinterpret_cast<QuantizeLanes>(b));
  return reinterpret_cast<Vec::F>(bits);
}

inline Vec::F to_4bit(Vec::F x) {
  return Vec::min(Vec::max(Vec::round(x), Vec::set(-8.0f)), Vec::set(7.0f));
}

inline Vec::F nearest_bf16(Vec::F x) {
  const QuantizeLanes bits = reinterpret_cast<QuantizeLanes>(x);
  return reinterpret_cast<Vec::F>((bits + 0x7fff + ((bits >> 16) & 1)) & ~0xffff);
}

// Of kWidth groups x in units of their peaks, and integers q.
struct FitSums {
  Vec::F xq = Vec::zero();
  Vec::F qq = Vec::zero();
  void add(Vec::F x, Vec::F q) {
    xq += x * q;
    qq += q * q;
  }
};

// The best scales so far, in units of the peaks, and how much of the squared norm they explain:
// sum x^2 - error^2 = d (2 sum x q - d sum q^2).
struct BestScales {
  Vec::F scale = Vec::zero();
  Vec::F gain = Vec::zero();

  // The least-squares scale, which is rounded to bf16 in the units of the weights first. NaN where
  // all q are zero, which no comparison prefers.
  void offer(const FitSums& sums, Vec::F peak, Vec::F inverse_peak) {
    const Vec::F d = nearest_bf16(sums.xq / sums.qq * peak) * inverse_peak;
    const Vec::F offered = d * (sums.xq + sums.xq - d * sums.qq);
    const QuantizeLanes better = offered > gain;
    scale = choose(better, d, scale);
    gain = choose(better, offered, gain);
  }
};

// kWidth groups at once, one per lane: x[i] holds element i of each. The peak, the value of largest
// magnitude with its sign, goes to -8 with the scale -peak/8, or beyond it, or short of it; one
// candidate has it at 7. Each candidate is judged with its own least-squares scale, and the winner
// is rounded and fitted once more. Leaves the scales' bits in `scales` and the low byte of each
// element of x as its integer. False when a value is not finite.
inline bool quantize_groups_4bit(Vec::F* x, int64_t count, uint32_t* scales) {
  constexpr float kPeakAt[] = {-8.0f, 7.0f,  -7.7f, -8.3f, -7.35f, -8.7f,
                               -7.0f, -9.1f, -6.6f, -9.6f, -6.25f, -10.2f};
  constexpr int kCandidates = sizeof(kPeakAt) / sizeof(float);
  using F = Vec::F;

  QuantizeLanes largest = {};
  F peak = Vec::zero();
  for (int64_t i = 0; i < count; ++i) {
    const QuantizeLanes size = reinterpret_cast<QuantizeLanes>(x[i]) & 0x7fffffff;
    const QuantizeLanes larger = size > largest;
    peak = choose(larger, x[i], peak);
    largest = (larger & size) | (~larger & largest);
  }
  for (int lane = 0; lane < Vec::kWidth; ++lane)
    if (largest[lane] >= kInfinityBits) return false;
  const QuantizeLanes tiny = largest < float_bits(kSmallestPeak);
  peak = choose(tiny, Vec::set(1.0f), peak);
  const F inverse_peak = Vec::set(1.0f) / peak;

  BestScales best;
  for (int candidate = 0; candidate < kCandidates; candidate += 2) {
    const F factor0 = inverse_peak * Vec::set(kPeakAt[candidate]);
    const F factor1 = inverse_peak * Vec::set(kPeakAt[candidate + 1]);
    FitSums fit0, fit1;
    for (int64_t i = 0; i < count; ++i) {
      const F unit = x[i] * inverse_peak;
      fit0.add(unit, to_4bit(x[i] * factor0));
      fit1.add(unit, to_4bit(x[i] * factor1));
    }
    best.offer(fit0, peak, inverse_peak);
    best.offer(fit1, peak, inverse_peak);
  }
  const QuantizeLanes none = best.scale == Vec::zero();
  FitSums refit;
  F inverse = Vec::set(1.0f) / choose(none, Vec::set(1.0f), best.scale * peak);
  for (int64_t i = 0; i < count; ++i) refit.add(x[i] * inverse_peak, to_4bit(x[i] * inverse));
  best.offer(refit, peak, inverse_peak);

  const F scale = choose(none, Vec::zero(), nearest_bf16(best.scale * peak));
  inverse = choose(none, Vec::zero(), Vec::set(1.0f) / scale);
  for (int64_t i = 0; i < count; ++i) x[i] = to_4bit(x[i] * inverse) + Vec::set(kRounder);
  for (int lane = 0; lane < Vec::kWidth; ++lane)
    scales[lane] = static_cast<uint32_t>(float_bits(scale[lane])) >> 16;
  return true;
}

// Sums over kWidth groups of x in units of their peaks, and of integers q.
struct LineSums {
  Vec::F q = Vec::zero();
  Vec::F qq = Vec::zero();
  Vec::F xq = Vec::zero();
  void add(Vec::F x, Vec::F integer) {
    q += integer;
    qq += integer * integer;
    xq += x * integer;
  }
};

// The best scales so far, in units of the peaks, with their zero points; judged as by BestScales.
struct BestLines {
  Vec::F count;
  Vec::F sum;  // of x
  Vec::F scale = Vec::zero();
  Vec::F zero = Vec::zero();
  Vec::F gain = Vec::zero();

  // The least-squares line through the q, its scale not below `least`, rounded to what is stored.
  void offer(const LineSums& sums, Vec::F least, Vec::F peak, Vec::F inverse_peak) {
    using F = Vec::F;
    const F slope = (count * sums.xq - sum * sums.q) / (count * sums.qq - sums.q * sums.q);
    const F d = nearest_bf16(choose(slope > least, slope, least) * peak) * inverse_peak;
    const F z = nearest_zero((sums.q - sum / d) / count);
    const F product = sums.xq - z * sum;
    const F offered = d * (product + product - d * (sums.qq - z * (sums.q + sums.q - z * count)));
    const QuantizeLanes better = offered > gain;
    scale = choose(better, d, scale);
    zero = choose(better, z, zero);
    gain = choose(better, offered, gain);
  }

  static Vec::F nearest_zero(Vec::F z) {
    const Vec::F units = Vec::round(z * Vec::set(1.0f / kZeroUnit));
    const Vec::F most = Vec::set(32767.0f);
    return Vec::min(Vec::max(units, Vec::zero() - most), most) * Vec::set(kZeroUnit);
  }
};

inline Vec::F to_nibble(Vec::F x) {
  return Vec::min(Vec::max(Vec::round(x), Vec::zero()), Vec::set(15.0f));
}

// As quantize_groups_4bit, with zero points. Candidates stretch the line from the least value at 0
// to the greatest at 15 about its middle, and move it. Zero points are below 128, so a group far
// from zero has a scale of at least a 120th of its peak.
inline bool quantize_groups_with_zeros(Vec::F* x, int64_t count, uint32_t* words) {
  struct Candidate {
    float stretch, move;
  };
  constexpr Candidate kCandidates[] = {{1.0f, 0.0f},   {1.06f, 0.0f}, {1.05f, 0.4f},
                                       {1.05f, -0.4f}, {1.12f, 0.7f}, {1.12f, -0.7f}};
  using F = Vec::F;

  F low = x[0], high = x[0], sum = Vec::zero();
  QuantizeLanes largest = {};
  for (int64_t i = 0; i < count; ++i) {
    const QuantizeLanes size = reinterpret_cast<QuantizeLanes>(x[i]) & 0x7fffffff;
    const QuantizeLanes larger = size > largest;
    largest = (larger & size) | (~larger & largest);
    low = choose(x[i] < low, x[i], low);
    high = choose(x[i] > high, x[i], high);
  }
  for (int lane = 0; lane < Vec::kWidth; ++lane)
    if (largest[lane] >= kInfinityBits) return false;
  const QuantizeLanes tiny = largest < float_bits(kSmallestPeak);
  const F peak = choose(tiny, Vec::set(1.0f), reinterpret_cast<F>(largest));
  const F inverse_peak = Vec::set(1.0f) / peak;
  for (int64_t i = 0; i < count; ++i) sum += x[i] * inverse_peak;

  const F least = Vec::set(1.0f / 120);
  const F bottom = low * inverse_peak;
  const F step = (high * inverse_peak - bottom) / Vec::set(15.0f);
  BestLines best{Vec::set(static_cast<float>(count)), sum};
  for (const Candidate& candidate : kCandidates) {
    const F d = choose(step > least, step, least);
    const F inverse = Vec::set(candidate.stretch) / d;
    const F begin = Vec::set(7.5f * (1.0f - candidate.stretch) + candidate.move) - bottom * inverse;
    LineSums sums;
    for (int64_t i = 0; i < count; ++i) {
      const F unit = x[i] * inverse_peak;
      sums.add(unit, to_nibble(unit * inverse + begin));
    }
    best.offer(sums, least, peak, inverse_peak);
  }
  const QuantizeLanes none = best.scale == Vec::zero();
  LineSums refit;
  F inverse = Vec::set(1.0f) / choose(none, Vec::set(1.0f), best.scale);
  for (int64_t i = 0; i < count; ++i) {
    const F unit = x[i] * inverse_peak;
    refit.add(unit, to_nibble(unit * inverse + best.zero));
  }
  best.offer(refit, least, peak, inverse_peak);

  const QuantizeLanes empty = none | tiny;
  const F scale = choose(empty, Vec::zero(), nearest_bf16(best.scale * peak));
  const F zero = choose(empty, Vec::zero(), best.zero);
  inverse = choose(empty, Vec::zero(), Vec::set(1.0f) / scale);
  for (int64_t i = 0; i < count; ++i) x[i] = to_nibble(x[i] * inverse + zero) + Vec::set(kRounder);
  for (int lane = 0; lane < Vec::kWidth; ++lane)
    words[lane] =
        (static_cast<uint32_t>(float_bits(scale[lane])) & 0xffff0000u) |
        (static_cast<uint32_t>(static_cast<int32_t>(zero[lane] * (1.0f / kZeroUnit))) & 0xffff);
  return true;
}

// `quantize_groups`: one of the functions for kWidth groups, one per lane.
template <typename Groups>
inline bool quantize_row_4bit(const QuantizeRow& p, const PanelLayout& layout,
                              const Groups& quantize_groups) {
  constexpr int64_t kLargestGroup = 128;
  constexpr int64_t kWidth = Vec::kWidth;
  Vec::F x[kLargestGroup];
  float* const elements = reinterpret_cast<float*>(x);
  const int64_t size = layout.group_k;
  for (int64_t first = 0; first < layout.groups; first += kWidth) {
    const int64_t groups = layout.groups - first < kWidth ? layout.groups - first : kWidth;
    for (int64_t lane = 0; lane < kWidth; ++lane) {
      const int64_t begin = (first + lane) * size;
      const int64_t rest = p.k - begin;
      const int64_t count = lane >= groups || rest <= 0 ? 0 : rest < size ? rest : size;
      for (int64_t i = 0; i < count; ++i) elements[i * kWidth + lane] = p.x[begin + i];
      for (int64_t i = count; i < size; ++i) elements[i * kWidth + lane] = 0.0f;
    }
    uint32_t scales[kWidth];
    if (!quantize_groups(x, size, scales)) return false;
    for (int64_t lane = 0; lane < groups; ++lane) {
      p.scales[first + lane] = scales[lane];
      int8_t* q = p.q + (first + lane) * size;
      const int64_t rest = p.k - (first + lane) * size;
      const int64_t count = rest < size ? rest : size;
      for (int64_t i = 0; i < count; ++i)
        q[i] = static_cast<int8_t>(float_bits(elements[i * kWidth + lane]));
      for (int64_t i = count; i < size; ++i) q[i] = 0;
    }
  }
  return true;
}

// x / scale to the nearest code, ties to even, what is beyond the largest to the largest.
inline void to_codes(const SmallFloat& f, const float* x, int64_t count, float scale, int8_t* q) {
  const uint32_t shift = 23 - f.mantissa;
  const float rounder = kRounder * f.unit;
  for (int64_t i = 0; i < count; ++i) {
    const float value = x[i] / scale;
    const uint32_t bits = static_cast<uint32_t>(float_bits(value));
    const uint32_t size = bits & 0x7fffffff;
    const float magnitude = __builtin_bit_cast(float, size);
    const uint32_t normal =
        ((size + (1u << (shift - 1)) - 1u + (size >> shift & 1u)) >> shift) - f.offset;
    const uint32_t subnormal = static_cast<uint32_t>(float_bits(magnitude + rounder)) & 0xff;
    const uint32_t code = magnitude < f.normal ? subnormal : normal;
    const uint32_t sign = (bits >> 31) * f.sign;
    q[i] = static_cast<int8_t>((code < f.largest ? code : f.largest) | sign);
  }
}

// The largest magnitude becomes 448.
inline bool quantize_group_e4m3(const float* x, int64_t count, int8_t* q, uint32_t* scale) {
  const int32_t bits = peak_bits(x, count);
  if (bits >= kInfinityBits) return false;
  const float peak = __builtin_bit_cast(float, bits);
  const float divisor = peak / value_of_code(kE4m3, kE4m3.largest);
  *scale = peak < kSmallestPeak ? 0 : static_cast<uint32_t>(float_bits(divisor));
  to_codes(kE4m3, x, count, *scale == 0 ? 1.0f : divisor, q);
  return true;
}

// The rule of OCP MX: the exponent of the largest magnitude becomes that of the largest number, 6,
// which takes what is beyond it.
inline bool quantize_group_e2m1(const float* x, int64_t count, int8_t* q, uint32_t* scale) {
  const int32_t bits = peak_bits(x, count);
  if (bits >= kInfinityBits) return false;
  *scale = bits < float_bits(kSmallestPeak) ? 0 : (static_cast<uint32_t>(bits) >> 23) - 2;
  to_codes(kE2m1, x, count, *scale == 0 ? 1.0f : value_of_scale(Scale::kE8m0, *scale), q);
  return true;
}

template <typename Group>
inline bool quantize_groups(const QuantizeRow& p, const PanelLayout& layout,
                            const Group& quantize) {
  for (int64_t group = 0; group < layout.groups; ++group) {
    const int64_t begin = group * layout.group_k;
    const int64_t rest = p.k - begin;
    const int64_t count = rest < layout.group_k ? rest : layout.group_k;
    if (!quantize(p.x + begin, count, p.q + begin, p.scales + group)) return false;
    for (int64_t i = count; i < layout.group_k; ++i) p.q[begin + i] = 0;
  }
  return true;
}

inline bool quantize_groups(const QuantizeRow& p, const PanelLayout& layout) {
  const bool is_8bit = info(p.format).bits == 8;
  if (has_small_floats(p.format))
    return quantize_groups(p, layout, is_8bit ? quantize_group_e4m3 : quantize_group_e2m1);
  if (is_8bit) return quantize_groups(p, layout, quantize_group_8bit);
  return has_zeros(p.format) ? quantize_row_4bit(p, layout, quantize_groups_with_zeros)
                             : quantize_row_4bit(p, layout, quantize_groups_4bit);
}

void quantize_row(const QuantizeRow& p) {
  const PanelLayout layout = panel_layout(p.format, p.k);
  if (quantize_groups(p, layout)) return;
  for (int64_t i = 0; i < layout.k; ++i) p.q[i] = 0;
  for (int64_t i = 0; i < layout.groups; ++i) p.scales[i] = nan_scale(info(p.format).scale);
}
