// What a step of K is, per storage: which numbers meet in a register and how they are multiplied.
// `Vec`, `Dot` and `Bf16` are the units of the including ISA file.
// Included inside an anonymous namespace: see isa/*.cpp.

struct OpF32 {
  using Acc = Vec::F;
  using Word = Vec::F;
  static constexpr int kTileRows = Vec::kTileRows, kTileVecs = Vec::kTileVecs, kParts = 1;
  static constexpr int64_t kSteps = 1;                // of K
  static constexpr int64_t kRowBytes = 4;             // of a row, per step
  static constexpr int64_t kPanelBytes = kPanel * 4;  // of a panel, per step
  static Word weights(const std::byte* p, int) {
    return Vec::load(reinterpret_cast<const float*>(p));
  }
  static Word row(const std::byte* p, int) { return Vec::set(*reinterpret_cast<const float*>(p)); }
  static Acc dot(Acc acc, Word w, Word a) { return Vec::fma(a, w, acc); }
};

// Widened in registers, which is exact.
struct OpF16 : OpF32 {
  static constexpr int kParts = 2;
  static constexpr int64_t kSteps = 2, kRowBytes = 8;
  static Word weights(const std::byte* p, int part) {
    const CodeWords words = load_words(p);
    return float_of_half(part == 0 ? words & 0xffffu : words >> 16);
  }
  static Word row(const std::byte* p, int part) { return OpF32::row(p + 4 * part, 0); }
};

struct OpBf16 : Bf16 {
  using Acc = Vec::F;
  static constexpr int64_t kSteps = 2, kRowBytes = 4, kPanelBytes = kPanel * 4;
};

// A part of several pairs of bf16, in every lane: brought there in pairs, which loads do alone.
inline Bf16::Word row_of_pairs(const std::byte* p, int part) {
  uint32_t pair;
  __builtin_memcpy(&pair, p + 4 * (part / Bf16::kParts), 4);
  return Bf16::of_pairs(CodeWords{} + pair, part % Bf16::kParts);
}

// Small floats, taken apart in registers: what a group and a column have as scale, and the parts of
// a line of words. kScaledSums: the sums of a group are scaled, not its weights.
struct OpE4m3 : OpBf16 {
  using Scale = Vec::F;
  static constexpr bool kScaledSums = true;
  static constexpr int kParts = 2 * Bf16::kParts;
  static constexpr int64_t kRowBytes = 8;
  static Scale scale(const std::byte* group, int64_t column) {
    return Vec::load(reinterpret_cast<const float*>(group) + column);
  }
  static Word step(CodeWords words, int part, Scale) {
    return of_pairs(Codes::e4m3(words, part / Bf16::kParts), part % Bf16::kParts);
  }
  static Word row(const std::byte* p, int part) { return row_of_pairs(p, part); }
};

struct OpE2m1 : OpBf16 {
  using Scale = Bf16::E2m1Scale;
  static constexpr bool kScaledSums = false;
  static constexpr int kParts = 4 * Bf16::kParts;
  static constexpr int64_t kRowBytes = 16;
  static Scale scale(const std::byte* group, int64_t column) { return e2m1_scale(group + column); }
  static Word step(CodeWords words, int part, Scale scale) { return e2m1(words, part, scale); }
  static Word row(const std::byte* p, int part) { return row_of_pairs(p, part); }
};

// What the sums of a group and a vector of columns become, given what the packed row has as theirs.
struct BiasedScales {
  static constexpr int64_t kBytes = 2;  // of a column
  Vec::F scale;

  explicit BiasedScales(const std::byte* p)
      : scale(Vec::load_bf16(reinterpret_cast<const uint16_t*>(p))) {}
  static Dot::I start(const std::byte* row_sum) {
    return Dot::set(*reinterpret_cast<const int32_t*>(row_sum));
  }
  Vec::F value(Dot::I sum, const std::byte*) const { return Dot::to_float(sum); }
  Vec::F added(Vec::F before, Dot::I sum, const std::byte* row_sum, Vec::F row_scale) const {
    return Vec::fma(value(sum, row_sum), Vec::mul(scale, row_scale), before);
  }
};

struct ZeroScales {
  static constexpr int64_t kBytes = 4;
  Vec::F scale;
  Vec::F minus_zero;

  explicit ZeroScales(const std::byte* p)
      : scale(Vec::pair_odd(reinterpret_cast<const uint32_t*>(p))),
        minus_zero(Vec::mul(Dot::to_float(Dot::low_half(Dot::load(p))), Vec::set(-kZeroUnit))) {}
  static Dot::I start(const std::byte*) { return Dot::set(0); }
  Vec::F value(Dot::I sum, const std::byte* row_sum) const {
    const Vec::F total = Vec::set(*reinterpret_cast<const float*>(row_sum));
    return Vec::fma(minus_zero, total, Dot::to_float(sum));
  }
  Vec::F added(Vec::F before, Dot::I sum, const std::byte* row_sum, Vec::F row_scale) const {
    return Vec::fma(value(sum, row_sum), Vec::mul(scale, row_scale), before);
  }
};

// Of blocks that were taken apart: fp32, [groups][kPanel].
struct BlockScales {
  static constexpr int64_t kBytes = 4, kStride = kPanel * 4;
  Vec::F scale;

  explicit BlockScales(Vec::F made) : scale(made) {}
  explicit BlockScales(const std::byte* p) : scale(Vec::load(reinterpret_cast<const float*>(p))) {}
  void store(std::byte* p) const { Vec::store(reinterpret_cast<float*>(p), scale); }
  static Dot::I start(const std::byte* row_sum) { return BiasedScales::start(row_sum); }
  Vec::F added(Vec::F before, Dot::I sum, const std::byte*, Vec::F row_scale) const {
    return Vec::fma(Dot::to_float(sum), Vec::mul(scale, row_scale), before);
  }
};

// Each row of scales is followed by one of minimums.
struct BlockScalesAndMinimums {
  static constexpr int64_t kBytes = 4, kStride = 2 * kPanel * 4;
  Vec::F scale, minimum;

  BlockScalesAndMinimums(Vec::F made, Vec::F made_minimum) : scale(made), minimum(made_minimum) {}
  explicit BlockScalesAndMinimums(const std::byte* p)
      : scale(Vec::load(reinterpret_cast<const float*>(p))),
        minimum(Vec::load(reinterpret_cast<const float*>(p + kPanel * 4))) {}
  void store(std::byte* p) const {
    Vec::store(reinterpret_cast<float*>(p), scale);
    Vec::store(reinterpret_cast<float*>(p + kPanel * 4), minimum);
  }
  static Dot::I start(const std::byte*) { return Dot::set(0); }
  Vec::F added(Vec::F before, Dot::I sum, const std::byte* row_sum, Vec::F row_scale) const {
    const Vec::F total = Vec::set(*reinterpret_cast<const float*>(row_sum));
    return Vec::fma(Vec::fma(minimum, total, Vec::mul(scale, Dot::to_float(sum))), row_scale,
                    before);
  }
};

struct OpI8 {
  using Acc = Dot::I;
  using Word = Dot::I;
  using Scales = BiasedScales;
  static constexpr int kTileRows = Dot::kTileRows, kTileVecs = Dot::kTileVecs, kParts = 1;
  static constexpr int64_t kSteps = 4, kRowBytes = 4, kPanelBytes = kPanel * 4;
  static Word weights(const std::byte* p, int) { return Dot::weights8(Dot::load(p)); }
  static Word row(const std::byte* p, int) { return Dot::row(p); }
  static Acc dot(Acc acc, Word w, Word a) { return Dot::dot8(acc, w, a); }
};

// Nibbles, taken apart in registers: the low ones are the first four steps.
struct OpI4 {
  using Acc = Dot::I;
  using Word = Dot::I;
  using Scales = BiasedScales;
  static constexpr int kTileRows = Dot::kTileRows, kTileVecs = Dot::kTileVecs, kParts = 2;
  static constexpr int64_t kSteps = 8, kRowBytes = 8, kPanelBytes = kPanel * 4;
  static Word weights(const std::byte* p, int part) {
    return part == 0 ? Dot::low_nibbles(Dot::load(p)) : Dot::high_nibbles(Dot::load(p));
  }
  static Word row(const std::byte* p, int part) { return Dot::row(p + 4 * part); }
  static Acc dot(Acc acc, Word w, Word a) { return Dot::dot4(acc, w, a); }
};

// Nibbles that were taken apart before, one to a byte.
struct OpI4Bytes : OpI8 {
  static Word weights(const std::byte* p, int) { return Dot::load(p); }
  static Acc dot(Acc acc, Word w, Word a) { return Dot::dot4(acc, w, a); }
};

// The same with zero points.
struct OpU4 : OpI4 {
  using Scales = ZeroScales;
};
struct OpU4Bytes : OpI4Bytes {
  using Scales = ZeroScales;
};

// Integers that were made from blocks: of all types the same few products.
template <bool kWholeBytes, bool kMinimums>
struct OpSpread : OpI8 {
  using Scales = std::conditional_t<kMinimums, BlockScalesAndMinimums, BlockScales>;
  static Word weights(const std::byte* p, int) {
    return kWholeBytes ? Dot::weights8(Dot::load(p)) : Dot::load(p);
  }
  static Acc dot(Acc acc, Word w, Word a) {
    return kWholeBytes ? Dot::dot8(acc, w, a) : Dot::dot4(acc, w, a);
  }
};
template <Format kFormat>
using OpSpreadOf = OpSpread<info(kFormat).bits == 8, has_minimums(kFormat)>;

// The same, made in registers.
template <Format kFormat>
struct OpBlock : OpSpreadOf<kFormat> {
  using Scales = typename OpSpreadOf<kFormat>::Scales;
  static Scales scales(const BlockColumns<kFormat>& block, int64_t group) {
    if constexpr (has_minimums(kFormat))
      return Scales(block.scale(group), block.minimum(group));
    else
      return Scales(block.scale(group));
  }
  static Dot::I integers(CodeWords words) {
    const Dot::I word = reinterpret_cast<Dot::I>(words);
    return info(kFormat).bits == 8 ? Dot::weights8(word) : word;
  }
};

// Weights to bring closer: a few lines with every few steps of every tile, so that memory and
// multipliers are busy at the same time. Bursts would fill the miss buffers and stop the loads.
// They are asked for in L1, which hands them on to L2 when it needs the room: 4-bit weights gain 4
// to 8 % beside L2 alone, others 1 or 2 %.
constexpr int64_t kStepsPerFetch = 8;
constexpr int kIntoL1 = 3, kIntoL2 = 2;
struct Prefetch {
  const std::byte* next;
  const std::byte* end;
  int64_t share;  // bytes
  Fetch after;    // when the first range is done, piece by piece
  // Bytes; where not 0, each step also brings as much of what comes so much later as it reads.
  int64_t ahead = 0;
  const std::byte* front = nullptr;  // what it brings then

  template <int kLevel = kIntoL1>
  inline __attribute__((always_inline)) void some() {
    const std::byte* stop = end - next < share ? end : next + share;
    for (; next < stop; next += 64) __builtin_prefetch(next, 0, kLevel);
    if (next >= end && after.bytes > 0) {
      next = after.data;
      end = after.data + after.bytes;
      after.data += after.stride;
      if (--after.pieces <= 0) after.bytes = 0;
    }
  }
  template <int64_t kBytes, int kLevel>
  inline __attribute__((always_inline)) void nearer() {
#pragma GCC unroll 8
    for (int64_t i = 0; i < kBytes; i += 64) __builtin_prefetch(front + i, 0, kLevel);
    front += kBytes;
  }
};

// Tiles as wide as a panel read it from end to end, and the processor's own fetching follows: more
// than L2 is not asked for. A narrower tile passes over a slice in strips, each of which fetches
// its share of the next slice for all of them.
template <int kVecs>
constexpr bool kWholePanel = kVecs * Vec::kWidth >= kPanel;
template <int kVecs>
constexpr int kFetchLevel = kWholePanel<kVecs> ? kIntoL2 : kIntoL1;

// acc += rows * weights over `steps` steps.
template <typename Op, int kRows, int kVecs, bool kFetches = true>
inline __attribute__((always_inline)) void accumulate(const std::byte* const* x, const std::byte* w,
                                                      int64_t steps, Prefetch& prefetch,
                                                      typename Op::Acc (&acc)[kRows][kVecs]) {
  const int64_t end = steps * Op::kRowBytes;
  for (int64_t offset = 0; offset < end;) {
    if constexpr (kFetches) prefetch.some();
    const int64_t left = end - offset;
    const int64_t stop =
        left < kStepsPerFetch * Op::kRowBytes ? end : offset + kStepsPerFetch * Op::kRowBytes;
    for (; offset < stop; offset += Op::kRowBytes, w += Op::kPanelBytes) {
      if constexpr (kFetches)
        if (prefetch.ahead != 0) prefetch.nearer<kVecs * Vec::kWidth * 4, kFetchLevel<kVecs>>();
#pragma GCC unroll 2
      for (int part = 0; part < Op::kParts; ++part) {
        typename Op::Word words[kVecs];
#pragma GCC unroll 8
        for (int v = 0; v < kVecs; ++v) words[v] = Op::weights(w + v * Vec::kWidth * 4, part);
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
          const typename Op::Word a = Op::row(x[r] + offset, part);
#pragma GCC unroll 8
          for (int v = 0; v < kVecs; ++v) acc[r][v] = Op::dot(acc[r][v], words[v], a);
        }
      }
    }
  }
}

// One of the parts of an Op's steps.
template <typename Op, int kPart>
struct PartOf : Op {
  static constexpr int kParts = 1;
  static typename Op::Word weights(const std::byte* p, int) { return Op::weights(p, kPart); }
  static typename Op::Word row(const std::byte* p, int) { return Op::row(p, kPart); }
};

// The same where the sums of the two parts run apart over Op::kStepsApart steps, from zero, and are
// then added to each other and to acc: the order of AMX tiles.
template <typename Op, int kRows, int kVecs>
inline void accumulate_apart(const std::byte* const* rows, const std::byte* w, int64_t steps,
                             Prefetch& prefetch, Vec::F (&acc)[kRows][kVecs]) {
  const std::byte* x[kRows];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) x[r] = rows[r];
  for (int64_t step = 0; step < steps; step += Op::kStepsApart) {
    Vec::F sums[2][kRows][kVecs];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
      for (int v = 0; v < kVecs; ++v) sums[0][r][v] = sums[1][r][v] = Vec::zero();
    accumulate<PartOf<Op, 0>, kRows, kVecs>(x, w, Op::kStepsApart, prefetch, sums[0]);
    accumulate<PartOf<Op, 1>, kRows, kVecs, false>(x, w, Op::kStepsApart, prefetch, sums[1]);
    w += Op::kStepsApart * Op::kPanelBytes;
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      x[r] += Op::kStepsApart * Op::kRowBytes;
#pragma GCC unroll 8
      for (int v = 0; v < kVecs; ++v)
        acc[r][v] = Vec::add(acc[r][v], Vec::add(sums[0][r][v], sums[1][r][v]));
    }
  }
}
