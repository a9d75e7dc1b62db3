// Blocks of ggml's types, taken apart into integers of a byte and scales, a vector of columns at a
// time. `Vec` and `Codes` are the units of the including ISA file.
// Included inside an anonymous namespace, after decode.inl.h: see isa/*.cpp.
//
// What the bits of a block mean is as llama.cpp publishes it (ggml-quants.c; the package `gguf` has
// the same, with which the tests compare). A word of a block lies beside the same word of other
// columns, so that a vector has one of each. BlockColumns<type> gives of a group:
//   word(group, i)     four steps of K, from 4 i on, as the bytes of each column's word: integers
//                      with the format's bias added. Types with points of eight weights have kGrid
//                      instead, and of the s-th sixteen weights of a block points(s, numbers), and
//                      signs(s) or offsets(s): see `Points`
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

// Seven bits of each byte, and an eighth that makes the number of ones even.
inline CodeWords with_parity(CodeWords bits) {
  CodeWords ones = bits ^ bits >> 4;  // of a byte's low four bits; above them are its neighbour's
  ones ^= ones >> 2;
  ones ^= ones >> 1;
  return bits | (ones & 0x01010101u) << 7;
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

// `scale` times one and a half, two and a half ... of a number of four bits.
inline Vec::F and_a_half(Vec::F scale, CodeWords number, float unit) {
  return Vec::mul(Vec::mul(scale, Vec::add(Vec::set(0.5f), to_floats(number))), Vec::set(unit));
}

// Seven bits each for the signs of the s-th sixteen weights, in a word for two of these.
inline CodeWords seven_bit_signs(CodeWords word, int64_t s) {
  const CodeWords bits = word >> (s % 2 * 14);
  return with_parity((bits & 127u) | (bits << 1 & 0x7f00u));
}

// Two words for a group: its four points, then signs and a scale.
template <>
struct BlockColumns<Format::kIq2Xxs> : HalfScale<Format::kIq2Xxs> {
  static constexpr auto& kGrid = kIq2XxsGrid;
  using HalfScale::HalfScale;
  Vec::F scale(int64_t group) const { return and_a_half(d, at(2 * group + 1) >> 28, 0.25f); }
  void points(int64_t s, CodeWords* numbers) const {
    const CodeWords two = at(s / 2 * 2) >> (s % 2 * 16);
    numbers[0] = two & 255u;
    numbers[1] = two >> 8 & 255u;
  }
  CodeWords signs(int64_t s) const { return seven_bit_signs(at(s / 2 * 2 + 1), s); }
};

// Words 0 to 15: nine bits of a point and seven signs; 16 and 17: scales.
template <>
struct BlockColumns<Format::kIq2Xs> : HalfScale<Format::kIq2Xs> {
  static constexpr auto& kGrid = kIq2XsGrid;
  using HalfScale::HalfScale;
  Vec::F scale(int64_t group) const {
    return and_a_half(d, byte(64 + group / 2) >> (group % 2 * 4) & 15u, 0.25f);
  }
  void points(int64_t s, CodeWords* numbers) const {
    numbers[0] = at(s) & 511u;
    numbers[1] = at(s) >> 16 & 511u;
  }
  CodeWords signs(int64_t s) const {
    return with_parity((at(s) >> 9 & 127u) | (at(s) >> 17 & 0x7f00u));
  }
};

// Words 0 to 7: eight bits of points; 8 to 15: signs; 16 and 17: two bits more; 18 and 19: scales.
template <>
struct BlockColumns<Format::kIq2S> : HalfScale<Format::kIq2S> {
  static constexpr auto& kGrid = kIq2SGrid;
  using HalfScale::HalfScale;
  Vec::F scale(int64_t group) const {
    return and_a_half(d, byte(72 + group / 2) >> (group % 2 * 4) & 15u, 0.25f);
  }
  void points(int64_t s, CodeWords* numbers) const {
    const CodeWords two = at(s / 2) >> (s % 2 * 16), more = at(16 + s / 8) >> (s % 8 * 4);
    numbers[0] = (two & 255u) | (more << 8 & 0x300u);
    numbers[1] = (two >> 8 & 255u) | (more << 6 & 0x300u);
  }
  CodeWords signs(int64_t s) const { return at(8 + s / 2) >> (s % 2 * 16); }
};

// Words 0 to 15: points of four weights; 16 to 23: seven signs of eight each, and a scale.
template <>
struct BlockColumns<Format::kIq3Xxs> : HalfScale<Format::kIq3Xxs> {
  using HalfScale::HalfScale;
  Vec::F scale(int64_t group) const { return and_a_half(d, at(16 + group) >> 28, 0.5f); }
  CodeWords word(int64_t group, int64_t i) const {
    const CodeWords signs = with_parity(at(16 + group) >> (i / 2 * 7) & 127u);
    const CodeWords sizes = Codes::words_at(kIq3XxsGrid.words, byte(8 * group + i));
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
    const CodeWords sizes = Codes::words_at(kIq3SGrid.words, byte(8 * group + i) | ninth << 8);
    return around_64(sizes, byte(72 + 4 * group + i / 2) >> (i % 2 * 4));
  }
};

// An eighth of `scale` times an odd number: twice one of three bits, and one.
inline Vec::F odd_eighths(Vec::F scale, CodeWords number) {
  const CodeWords bits = number & 7u;
  return Vec::mul(Vec::mul(scale, to_floats(bits + bits + 1u)), Vec::set(0.125f));
}

// A weight is 8 eighths for each unit of a point, and one more, or one less where a bit says so.
// Words 0 to 7: eight bits of points; 8 to 11: of a group the three others of four points, a scale
// and such a bit.
template <>
struct BlockColumns<Format::kIq1S> : HalfScale<Format::kIq1S> {
  static constexpr auto& kGrid = kIq1Grid;
  using HalfScale::HalfScale;
  CodeWords of(int64_t group) const { return at(8 + group / 2) >> (group % 2 * 16); }
  Vec::F scale(int64_t group) const { return odd_eighths(d, of(group) >> 12); }
  void points(int64_t s, CodeWords* numbers) const {
    const CodeWords two = at(s / 2) >> (s % 2 * 16), more = of(s / 2) >> (s % 2 * 6);
    numbers[0] = (two & 255u) | (more << 8 & 0x700u);
    numbers[1] = (two >> 8 & 255u) | (more << 5 & 0x700u);
  }
  CodeWords offsets(int64_t s) const {
    const CodeWords bit = of(s / 2) >> 14 & 2u;
    return bit | bit << 8;
  }
};

// Words 0 to 7: eight bits of points; 8 to 11: three others and such a bit of each; 12 and 13:
// scales of three bits, and in the highest four of each half a part of what they are multiplied by.
template <>
struct BlockColumns<Format::kIq1M> : BlockWords<Format::kIq1M> {
  static constexpr auto& kGrid = kIq1Grid;
  Vec::F d;
  BlockColumns(const std::byte* panel, BlockPlace place) : BlockWords(panel, place) {
    const CodeWords low = at(12), high = at(13);
    d = float_of_half((low >> 12 & 15u) | (low >> 28) << 4 | (high >> 12 & 15u) << 8 |
                      (high >> 28) << 12);
  }
  Vec::F scale(int64_t group) const {
    return odd_eighths(d, at(12 + group / 8) >> (group / 4 % 2 * 16 + group % 4 * 3));
  }
  void points(int64_t s, CodeWords* numbers) const {
    const CodeWords two = at(s / 2) >> (s % 2 * 16), more = at(8 + s / 4) >> (s % 4 * 8);
    numbers[0] = (two & 255u) | (more << 8 & 0x700u);
    numbers[1] = (two >> 8 & 255u) | (more << 4 & 0x700u);
  }
  CodeWords offsets(int64_t s) const {
    const CodeWords bits = at(8 + s / 4) >> (s % 4 * 8);
    return (bits >> 2 & 2u) | (bits << 2 & 0x200u);
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
  // Each byte alone in a half of a word, above eight zeros: what is above it falls off.
  static CodeWords digits(CodeWords words, int64_t place) {
    typedef uint16_t Halves __attribute__((vector_size(sizeof(CodeWords))));
    constexpr uint16_t kPowers[] = {1, 3, 9, 27, 81};
    const auto digit = [&](Halves byte) { return (byte * kPowers[place] >> 8) * 3 >> 8; };
    const Halves bytes = reinterpret_cast<Halves>(words);
    return reinterpret_cast<CodeWords>(digit(bytes << 8) | digit(bytes & 0xff00) << 8);
  }
};

template <Format kFormat>
constexpr bool kHasGrid = requires { BlockColumns<kFormat>::kGrid; };

template <Format kFormat>
constexpr bool kHasSigns = requires(const BlockColumns<kFormat>& columns) { columns.signs(0); };

// Calls body(i, points, more) for each sixteen weights of a group that are looked up.
template <Format kFormat, typename Body>
inline void over_points(const BlockColumns<kFormat>& columns, int64_t group, const Body& body) {
  constexpr int64_t kSixteens = info(kFormat).group / 16;
  for (int64_t i = 0; i < kSixteens; ++i) {
    const int64_t s = group * kSixteens + i;
    CodeWords points[2];
    columns.points(s, points);
    if constexpr (kHasSigns<kFormat>)
      body(i, points, columns.signs(s));
    else
      body(i, points, columns.offsets(s));
  }
}

// All words of a group.
template <Format kFormat>
inline void words_of(const BlockColumns<kFormat>& columns, int64_t group, CodeWords* words) {
  if constexpr (kHasGrid<kFormat>) {
    constexpr auto& grid = BlockColumns<kFormat>::kGrid;
    over_points(columns, group, [&](int64_t i, const CodeWords* points, CodeWords more) {
      if constexpr (kHasSigns<kFormat>)
        Points::with_signs(grid.words, points, more, words + 4 * i);
      else
        Points::with_offsets(grid.words, points, more, words + 4 * i);
    });
  } else {
    const auto each = [&]<int... kAt>(std::integer_sequence<int, kAt...>) {
      ((words[kAt] = columns.word(group, kAt)), ...);
    };
    each(std::make_integer_sequence<int, info(kFormat).group / 4>());
  }
}

// Sums of products of a group's integers with one row; `start` is what the format's bias takes.
template <Format kFormat>
inline Dot::I sums_of(const BlockColumns<kFormat>& columns, int64_t group, const std::byte* row,
                      Dot::I start) {
  constexpr auto& grid = BlockColumns<kFormat>::kGrid;
  Points::Rows rows;
  over_points(columns, group, [&](int64_t i, const CodeWords* points, CodeWords more) {
    Points::Rows found;
    if constexpr (kHasSigns<kFormat>)
      found = Points::products_with_signs(grid.words, points, more, row + 16 * i);
    else
      found = Points::products_with_offsets(grid.words, points, more, row + 16 * i);
    if (i == 0)
      rows = found;
    else
      rows.add(found);
  });
  const Dot::I sums = rows.sums();
  if constexpr (kHasSigns<kFormat>) return sums;
  return reinterpret_cast<Dot::I>(reinterpret_cast<SignedWords>(start) +
                                  reinterpret_cast<SignedWords>(sums));
}

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
