// Blocks of ggml's types, taken apart into integers of a byte and scales, a vector of columns at a
// time. `Vec` and `Codes` are the units of the including ISA file.
// Included inside an anonymous namespace, after decode.inl.h: see isa/*.cpp.
//
// What the bits of a block mean is as llama.cpp publishes it (ggml-quants.c; the package `gguf` has
// the same, with which the tests compare). A word of a block lies beside the same word of other
// columns, so that a vector has one of each. BlockColumns<type> gives of a group:
//   word(group, i)     four steps of K, from 4 i on, as the bytes of each column's word: integers
//                      with the format's bias added
//   scale(group)       what an integer without bias is multiplied by
//   minimum(group)     what is added to that, of types that have such
// A group may be another one than that of the type's own scales: all types have 16 or 32 here.

typedef int32_t SignedWords __attribute__((vector_size(4 * Vec::kWidth)));

inline Vec::F to_floats(CodeWords words) {
  return __builtin_convertvector(reinterpret_cast<SignedWords>(words), Vec::F);
}

// All ones where a word, which is no negative number, is below the limit.
inline CodeWords below(CodeWords words, int32_t limit) {
  return reinterpret_cast<CodeWords>(reinterpret_cast<SignedWords>(words) < limit);
}

// float16 in the low halves of words. A subnormal one counts as if it were normal, less what that
// adds: subnormal fp32 would be slow, or zero.
inline Vec::F float_of_half(CodeWords half) {
  constexpr uint32_t kOne = 1u << 23, kMoved = 112u << 23;
  const CodeWords magnitude = (half & 0x7fffu) << 13;
  const CodeWords subnormal = below(magnitude, kOne);
  const CodeWords bits = magnitude + kMoved + (subnormal & kOne);
  const Vec::F value = Vec::sub(reinterpret_cast<Vec::F>(bits),
                                reinterpret_cast<Vec::F>(subnormal & (kMoved + kOne)));
  return reinterpret_cast<Vec::F>(reinterpret_cast<CodeWords>(value) | (half & 0x8000u) << 16);
}

// Half of an e4m3 without sign, whose NaN counts as 0.
inline Vec::F half_of_unsigned_e4m3(CodeWords code) {
  constexpr uint32_t kOne = 1u << 23, kMoved = 120u << 23;
  const CodeWords magnitude = (code & 0x7fu) << 20;
  const CodeWords subnormal = below(magnitude, kOne);
  const CodeWords bits = magnitude + kMoved + (subnormal & kOne);
  const Vec::F value = Vec::sub(reinterpret_cast<Vec::F>(bits),
                                reinterpret_cast<Vec::F>(subnormal & (kMoved + kOne)));
  const CodeWords number = reinterpret_cast<CodeWords>(code != 0x7fu);
  return Vec::mul(reinterpret_cast<Vec::F>(reinterpret_cast<CodeWords>(value) & number),
                  Vec::set(0.5f));
}

// The low four bits of words, one to each byte.
inline CodeWords spread_bits(CodeWords bits) {
  const CodeWords pairs = bits | bits << 7;
  return (pairs | pairs << 14) & 0x01010101u;
}

// The low seven bits, and an eighth that makes the number of ones even.
inline CodeWords with_parity(CodeWords bits) {
  CodeWords ones = bits ^ bits >> 4;
  ones ^= ones >> 2;
  ones ^= ones >> 1;
  return bits | (ones & 1u) << 7;
}

// 64 plus or minus each byte, which is below 64; minus where the four low bits of `signs` say so.
inline CodeWords around_64(CodeWords sizes, CodeWords signs) {
  const CodeWords minus = spread_bits(signs & 15u), by_64 = minus << 6;
  return (sizes ^ (by_64 - minus)) + (0x40404040u ^ (by_64 | minus));
}

inline CodeWords byte_of(CodeWords words, int64_t index) { return words >> (index * 8) & 255u; }

// The words of one block of a panel.
template <Format kFormat>
struct BlockWords {
  const std::byte* halves;
  const std::byte* words;

  BlockWords(const std::byte* panel, BlockPlace place)
      : halves(panel + place.half), words(panel + place.words) {}
  CodeWords at(int64_t word) const { return load_words(words + word * kStrip * 4); }
  CodeWords byte(int64_t index) const { return byte_of(at(index / 4), index % 4); }
  // The two bytes beside the words, a float16 in all types that have them.
  Vec::F half() const {
    const auto* bits = reinterpret_cast<const uint16_t*>(halves);
    return float_of_half(reinterpret_cast<CodeWords>(Vec::load_bf16(bits)) >> 16);
  }
};

template <Format kFormat>
struct BlockColumns;

constexpr uint32_t kNibbles = 0x0f0f0f0fu, kPairs = 0x03030303u;

// A scale for all of a block.
template <Format kFormat>
struct HalfScale : BlockWords<kFormat> {
  using Words = BlockWords<kFormat>;
  Vec::F d;
  HalfScale(const std::byte* panel, BlockPlace place) : Words(panel, place), d(Words::half()) {}
  Vec::F scale(int64_t) const { return d; }
};

// A word of a scale and what is added.
template <Format kFormat>
struct ScaleAndMinimum : BlockWords<kFormat> {
  using Words = BlockWords<kFormat>;
  Vec::F d, added;
  ScaleAndMinimum(const std::byte* panel, BlockPlace place, int64_t word = 0)
      : Words(panel, place),
        d(float_of_half(Words::at(word) & 0xffffu)),
        added(float_of_half(Words::at(word) >> 16)) {}
  Vec::F scale(int64_t) const { return d; }
  Vec::F minimum(int64_t) const { return added; }
};

// Sixteen bytes from a word on: the low nibbles, then the high ones.
template <typename Words>
inline CodeWords nibbles_of(const Words& block, int64_t first, int64_t i) {
  return block.at(first + i % 4) >> (i / 4 * 4) & kNibbles;
}

template <>
struct BlockColumns<Format::kQ8_0> : HalfScale<Format::kQ8_0> {
  using HalfScale::HalfScale;
  CodeWords word(int64_t, int64_t i) const { return at(i) ^ 0x80808080u; }
};

template <>
struct BlockColumns<Format::kQ4_0> : HalfScale<Format::kQ4_0> {
  using HalfScale::HalfScale;
  CodeWords word(int64_t, int64_t i) const { return nibbles_of(*this, 0, i); }
};

template <>
struct BlockColumns<Format::kQ4_1> : ScaleAndMinimum<Format::kQ4_1> {
  using ScaleAndMinimum::ScaleAndMinimum;
  CodeWords word(int64_t, int64_t i) const { return nibbles_of(*this, 1, i); }
};

// The fifth bits are those of a word, one after the other.
template <>
struct BlockColumns<Format::kQ5_0> : HalfScale<Format::kQ5_0> {
  using HalfScale::HalfScale;
  CodeWords word(int64_t, int64_t i) const {
    return nibbles_of(*this, 1, i) | spread_bits(at(0) >> (4 * i) & 15u) << 4;
  }
};

template <>
struct BlockColumns<Format::kQ5_1> : ScaleAndMinimum<Format::kQ5_1> {
  using ScaleAndMinimum::ScaleAndMinimum;
  CodeWords word(int64_t, int64_t i) const {
    return nibbles_of(*this, 2, i) | spread_bits(at(1) >> (4 * i) & 15u) << 4;
  }
};

template <>
struct BlockColumns<Format::kIq4Nl> : HalfScale<Format::kIq4Nl> {
  using HalfScale::HalfScale;
  CodeWords word(int64_t, int64_t i) const {
    return Codes::bytes_at(kIq4Numbers, nibbles_of(*this, 0, i));
  }
};

// Words 0: the scale, and two bits of each group's; 1: four more bits of each.
template <>
struct BlockColumns<Format::kIq4Xs> : BlockWords<Format::kIq4Xs> {
  Vec::F d;
  BlockColumns(const std::byte* panel, BlockPlace place)
      : BlockWords(panel, place), d(float_of_half(at(0) & 0xffffu)) {}
  Vec::F scale(int64_t group) const {
    const CodeWords low = at(1) >> (4 * group) & 15u, high = at(0) >> (16 + 2 * group) & 3u;
    return Vec::mul(d, to_floats((low | high << 4) - 32u));
  }
  CodeWords word(int64_t group, int64_t i) const {
    return Codes::bytes_at(kIq4Numbers, nibbles_of(*this, 2 + 4 * group, i));
  }
};

// Word 0: scales of four groups. Of a group's eight bytes the low nibbles come first.
template <>
struct BlockColumns<Format::kNvFp4> : BlockWords<Format::kNvFp4> {
  using BlockWords::BlockWords;
  Vec::F scale(int64_t group) const { return half_of_unsigned_e4m3(byte(group)); }
  CodeWords word(int64_t group, int64_t i) const {
    const CodeWords codes = at(1 + 2 * group + i % 2) >> (i / 2 * 4) & kNibbles;
    return Codes::bytes_at(kE2m1Numbers, codes);
  }
};

// Words 1 to 3: six bits for each of eight scales and eight minimums. The first four of both have
// the low bits of a byte each; what those leave and four more bytes have the last four.
template <Format kFormat>
struct SixBitScales : ScaleAndMinimum<kFormat> {
  using Base = ScaleAndMinimum<kFormat>;
  CodeWords scales[2], falls[2];  // bytes
  SixBitScales(const std::byte* panel, BlockPlace place) : Base(panel, place) {
    const CodeWords first = Base::at(1), second = Base::at(2), last = Base::at(3);
    scales[0] = first & 0x3f3f3f3fu;
    falls[0] = second & 0x3f3f3f3fu;
    scales[1] = (last & kNibbles) | (first >> 6 & kPairs) << 4;
    falls[1] = (last >> 4 & kNibbles) | (second >> 6 & kPairs) << 4;
  }
  Vec::F scale(int64_t group) const {
    return Vec::mul(Base::d, to_floats(byte_of(scales[group / 4], group % 4)));
  }
  Vec::F minimum(int64_t group) const {
    const Vec::F fall = Vec::mul(Base::added, to_floats(byte_of(falls[group / 4], group % 4)));
    return Vec::sub(Vec::zero(), fall);
  }
};

// Of 32 bytes the low nibbles are a group, the high ones the next.
template <>
struct BlockColumns<Format::kQ4K> : SixBitScales<Format::kQ4K> {
  using SixBitScales::SixBitScales;
  CodeWords word(int64_t group, int64_t i) const {
    return at(4 + group / 2 * 8 + i) >> (group % 2 * 4) & kNibbles;
  }
};

// Words 4 to 11: of each byte a bit for each group.
template <>
struct BlockColumns<Format::kQ5K> : SixBitScales<Format::kQ5K> {
  using SixBitScales::SixBitScales;
  CodeWords word(int64_t group, int64_t i) const {
    const CodeWords low = at(12 + group / 2 * 8 + i) >> (group % 2 * 4) & kNibbles;
    return low | (at(4 + i) >> group & 0x01010101u) << 4;
  }
};

// Of groups of sixteen, eight have the same bytes' bits: a half of a block; two of these have the
// same shift.
struct Sixteen {
  int64_t half, shift, part;
  explicit Sixteen(int64_t group) : half(group / 8), shift(group % 8 / 2), part(group % 2) {}
};

// Words 0 to 31: low nibbles; 32 to 47: two bits more; 48 to 51: scales.
template <>
struct BlockColumns<Format::kQ6K> : HalfScale<Format::kQ6K> {
  using HalfScale::HalfScale;
  Vec::F scale(int64_t group) const {
    const CodeWords moved = at(48 + group / 4) << (24 - group % 4 * 8);
    return Vec::mul(
        d, to_floats(reinterpret_cast<CodeWords>(reinterpret_cast<SignedWords>(moved) >> 24)));
  }
  CodeWords word(int64_t group, int64_t i) const {
    const Sixteen of(group);
    const int64_t low_word = 16 * of.half + of.shift % 2 * 8 + 4 * of.part + i;
    const CodeWords low = at(low_word) >> (of.shift / 2 * 4) & kNibbles;
    const CodeWords high = at(32 + 8 * of.half + 4 * of.part + i) >> (2 * of.shift) & kPairs;
    return low | high << 4;
  }
};

// Words 0 to 7: third bits; 8 to 23: two bits each; 24 to 26: scales of six bits.
template <>
struct BlockColumns<Format::kQ3K> : HalfScale<Format::kQ3K> {
  CodeWords scales[4];  // bytes
  BlockColumns(const std::byte* panel, BlockPlace place) : HalfScale(panel, place) {
    const CodeWords low[2] = {at(24), at(25)}, high = at(26);
    for (int i = 0; i < 4; ++i)
      scales[i] = (low[i % 2] >> (i / 2 * 4) & kNibbles) | (high >> (2 * i) & kPairs) << 4;
  }
  Vec::F scale(int64_t group) const {
    return Vec::mul(d, to_floats(byte_of(scales[group / 4], group % 4) - 32u));
  }
  CodeWords word(int64_t group, int64_t i) const {
    const Sixteen of(group);
    const CodeWords low = at(8 + 8 * of.half + 4 * of.part + i) >> (2 * of.shift) & kPairs;
    const CodeWords third = at(4 * of.part + i) >> (4 * of.half + of.shift) & 0x01010101u;
    return low | third << 2;
  }
};

// Words 0 to 3: a byte of scale and minimum for each group; 4 to 19: two bits each; 20: what these
// are multiplied by.
template <>
struct BlockColumns<Format::kQ2K> : ScaleAndMinimum<Format::kQ2K> {
  BlockColumns(const std::byte* panel, BlockPlace place) : ScaleAndMinimum(panel, place, 20) {}
  Vec::F scale(int64_t group) const { return Vec::mul(d, to_floats(byte(group) & 15u)); }
  Vec::F minimum(int64_t group) const {
    return Vec::sub(Vec::zero(), Vec::mul(added, to_floats(byte(group) >> 4)));
  }
  CodeWords word(int64_t group, int64_t i) const {
    const Sixteen of(group);
    return at(4 + 8 * of.half + 4 * of.part + i) >> (2 * of.shift) & kPairs;
  }
};

// Two words of a point of a grid, or the only one.
template <typename TheGrid>
inline CodeWords point_of(const TheGrid& grid, CodeWords point, int64_t words, int64_t i) {
  return Codes::words_at(grid.words + i % words, words == 1 ? point : point + point);
}

// `scale` times one and a half, two and a half ... of a number of four bits.
inline Vec::F and_a_half(Vec::F scale, CodeWords number, float unit) {
  return Vec::mul(Vec::mul(scale, Vec::add(Vec::set(0.5f), to_floats(number))), Vec::set(unit));
}

// Two words for a group: its four points, then seven signs of each and a scale.
template <>
struct BlockColumns<Format::kIq2Xxs> : HalfScale<Format::kIq2Xxs> {
  using HalfScale::HalfScale;
  Vec::F scale(int64_t group) const { return and_a_half(d, at(2 * group + 1) >> 28, 0.25f); }
  CodeWords word(int64_t group, int64_t i) const {
    const CodeWords signs = with_parity(at(2 * group + 1) >> (i / 2 * 7) & 127u);
    const CodeWords sizes = point_of(kIq2XxsGrid, byte(8 * group + i / 2), 2, i);
    return around_64(sizes, signs >> (i % 2 * 4));
  }
};

// Words 0 to 15: nine bits of a point and seven signs; 16 and 17: scales.
template <>
struct BlockColumns<Format::kIq2Xs> : HalfScale<Format::kIq2Xs> {
  using HalfScale::HalfScale;
  Vec::F scale(int64_t group) const {
    return and_a_half(d, byte(64 + group / 2) >> (group % 2 * 4) & 15u, 0.25f);
  }
  CodeWords word(int64_t group, int64_t i) const {
    const CodeWords both = at(group) >> (i / 2 * 16) & 0xffffu;
    const CodeWords sizes = point_of(kIq2XsGrid, both & 511u, 2, i);
    return around_64(sizes, with_parity(both >> 9) >> (i % 2 * 4));
  }
};

// Words 0 to 7: eight bits of points; 8 to 15: signs; 16 and 17: two bits more; 18 and 19: scales.
template <>
struct BlockColumns<Format::kIq2S> : HalfScale<Format::kIq2S> {
  using HalfScale::HalfScale;
  Vec::F scale(int64_t group) const {
    return and_a_half(d, byte(72 + group / 2) >> (group % 2 * 4) & 15u, 0.25f);
  }
  CodeWords word(int64_t group, int64_t i) const {
    const int64_t point = 2 * group + i / 2;
    const CodeWords high = byte(64 + point / 4) >> (point % 4 * 2) & 3u;
    const CodeWords sizes = point_of(kIq2SGrid, byte(point) | high << 8, 2, i);
    return around_64(sizes, byte(32 + point) >> (i % 2 * 4));
  }
};

// Words 0 to 15: points of four weights; 16 to 23: seven signs of eight each, and a scale.
template <>
struct BlockColumns<Format::kIq3Xxs> : HalfScale<Format::kIq3Xxs> {
  using HalfScale::HalfScale;
  Vec::F scale(int64_t group) const { return and_a_half(d, at(16 + group) >> 28, 0.5f); }
  CodeWords word(int64_t group, int64_t i) const {
    const CodeWords signs = with_parity(at(16 + group) >> (i / 2 * 7) & 127u);
    const CodeWords sizes = point_of(kIq3XxsGrid, byte(8 * group + i), 1, 0);
    return around_64(sizes, signs >> (i % 2 * 4));
  }
};

// Words 0 to 15: eight bits of points of four weights; 16 and 17: the ninth; 18 to 25: signs; 26:
// scales.
template <>
struct BlockColumns<Format::kIq3S> : HalfScale<Format::kIq3S> {
  using HalfScale::HalfScale;
  Vec::F scale(int64_t group) const {
    const CodeWords number = byte(104 + group / 2) >> (group % 2 * 4) & 15u;
    return Vec::mul(d, to_floats(number + number + 1u));
  }
  CodeWords word(int64_t group, int64_t i) const {
    const CodeWords ninth = byte(64 + group) >> i & 1u;
    const CodeWords sizes = point_of(kIq3SGrid, byte(8 * group + i) | ninth << 8, 1, 0);
    return around_64(sizes, byte(72 + 4 * group + i / 2) >> (i % 2 * 4));
  }
};

// Eighths: 8 for each unit of a point, and one more, or less where a bit says so.
inline CodeWords eighths(CodeWords point, CodeWords less, int64_t i) {
  const CodeWords by = 0x01010101u - ((CodeWords{} - less) & 0x02020202u);
  return point_of(kIq1Grid, point, 2, i) + by;
}

// An eighth of `scale` times an odd number: twice one of three bits, and one.
inline Vec::F odd_eighths(Vec::F scale, CodeWords number) {
  const CodeWords bits = number & 7u;
  return Vec::mul(Vec::mul(scale, to_floats(bits + bits + 1u)), Vec::set(0.125f));
}

// Words 0 to 7: eight bits of points; 8 to 11: of a group the three others of four points, a scale
// and a sign.
template <>
struct BlockColumns<Format::kIq1S> : HalfScale<Format::kIq1S> {
  using HalfScale::HalfScale;
  CodeWords of(int64_t group) const { return at(8 + group / 2) >> (group % 2 * 16); }
  Vec::F scale(int64_t group) const { return odd_eighths(d, of(group) >> 12); }
  CodeWords word(int64_t group, int64_t i) const {
    const CodeWords more = of(group), high = more >> (i / 2 * 3) & 7u;
    return eighths(byte(4 * group + i / 2) | high << 8, more >> 15 & 1u, i);
  }
};

// Words 0 to 7: eight bits of points; 8 to 11: three others and a sign of each; 12 and 13: scales
// of three bits, and in the highest four of each half a part of what they are multiplied by.
template <>
struct BlockColumns<Format::kIq1M> : BlockWords<Format::kIq1M> {
  Vec::F d;
  BlockColumns(const std::byte* panel, BlockPlace place) : BlockWords(panel, place) {
    const CodeWords low = at(12), high = at(13);
    d = float_of_half((low >> 12 & 15u) | (low >> 28) << 4 | (high >> 12 & 15u) << 8 |
                      (high >> 28) << 12);
  }
  Vec::F scale(int64_t group) const {
    return odd_eighths(d, at(12 + group / 8) >> (group / 4 % 2 * 16 + group % 4 * 3));
  }
  CodeWords word(int64_t group, int64_t i) const {
    const int64_t point = 2 * group + i / 2;
    const CodeWords more = at(8 + point / 8) >> (point % 8 * 4);
    return eighths(byte(point) | (more & 7u) << 8, more >> 3 & 1u, i);
  }
};

template <>
struct BlockColumns<Format::kTq2_0> : HalfScale<Format::kTq2_0> {
  using HalfScale::HalfScale;
  CodeWords word(int64_t group, int64_t i) const {
    return at(group / 4 * 8 + i) >> (group % 4 * 2) & kPairs;
  }
};

// A byte is a fraction of 256 with five digits to the base of three: of 128 weights the first ones,
// then the second ones ...; after 160 weights so of 16 bytes, and after 240 four of four.
template <>
struct BlockColumns<Format::kTq1_0> : HalfScale<Format::kTq1_0> {
  using HalfScale::HalfScale;
  CodeWords word(int64_t group, int64_t i) const {
    if (group < 5) return digits(at(i), group);
    const int64_t four = (group - 5) * 8 + i;  // of the weights that follow
    if (four < 20) return digits(at(8 + four % 4), four / 4);
    return digits(at(12), four - 20);
  }

 private:
  static CodeWords digits(CodeWords words, int64_t place) {
    constexpr uint32_t kPowers[] = {1, 3, 9, 27, 81}, kHalves = 0x00ff00ffu;
    const auto digit = [&](CodeWords bytes) {
      const CodeWords fraction = (bytes & kHalves) * kPowers[place] & kHalves;
      return (fraction * 3u) >> 8 & 0x00030003u;
    };
    return digit(words) | digit(words >> 8) << 8;
  }
};

// One block of all columns of a strip.
template <Format kFormat>
struct BlockStrip {
  static constexpr int kVecs = kStrip / Vec::kWidth;
  BlockColumns<kFormat> of[kVecs];

  BlockStrip(const std::byte* panel, const PanelLayout& layout, int64_t block, int64_t column)
      : BlockStrip(panel, layout, block, column, std::make_integer_sequence<int, kVecs>()) {}

 private:
  template <int... kVec>
  BlockStrip(const std::byte* panel, const PanelLayout& layout, int64_t block, int64_t column,
             std::integer_sequence<int, kVec...>)
      : of{BlockColumns<kFormat>(panel,
                                 block_place(layout, block, column + kVec * Vec::kWidth))...} {}
};

// Calls body.operator()<format>() for a format with blocks.
template <typename Body>
inline void with_blocks(Format format, const Body& body) {
  switch (format) {
#define INLAY_BLOCKS(name) \
  case Format::name:       \
    return body.template operator()<Format::name>();
    INLAY_BLOCKS(kQ8_0)
    INLAY_BLOCKS(kQ6K)
    INLAY_BLOCKS(kQ5_1)
    INLAY_BLOCKS(kQ5_0)
    INLAY_BLOCKS(kQ5K)
    INLAY_BLOCKS(kQ4_1)
    INLAY_BLOCKS(kQ4_0)
    INLAY_BLOCKS(kQ4K)
    INLAY_BLOCKS(kIq4Nl)
    INLAY_BLOCKS(kIq4Xs)
    INLAY_BLOCKS(kNvFp4)
    INLAY_BLOCKS(kQ3K)
    INLAY_BLOCKS(kIq3S)
    INLAY_BLOCKS(kIq3Xxs)
    INLAY_BLOCKS(kQ2K)
    INLAY_BLOCKS(kIq2S)
    INLAY_BLOCKS(kIq2Xs)
    INLAY_BLOCKS(kIq2Xxs)
    INLAY_BLOCKS(kTq2_0)
    INLAY_BLOCKS(kTq1_0)
    INLAY_BLOCKS(kIq1M)
    INLAY_BLOCKS(kIq1S)
#undef INLAY_BLOCKS
    default:
      return;
  }
}
