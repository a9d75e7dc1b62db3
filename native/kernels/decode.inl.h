// Small floats taken apart into bf16 panels. `Codes` is the unit of the including ISA file.
// Included inside an anonymous namespace: see isa/*.cpp.

using CodeWords = Codes::Words;

inline CodeWords load_words(const std::byte* p) {
  CodeWords words;
  __builtin_memcpy(&words, p, sizeof words);
  return words;
}
inline void store_words(std::byte* p, CodeWords words) {
  __builtin_memcpy(p, &words, sizeof words);
}

// The low four bits of words, one to each byte.
inline CodeWords spread_bits(CodeWords bits) {
  const CodeWords pairs = bits | bits << 7;
  return (pairs | pairs << 14) & 0x01010101u;
}

// 64 plus or minus each byte, which is below 64; minus where the four low bits of `signs` say so.
inline CodeWords around_64(CodeWords sizes, CodeWords signs) {
  const CodeWords minus = spread_bits(signs & 15u), by_64 = minus << 6;
  return (sizes ^ (by_64 - minus)) + (0x40404040u ^ (by_64 | minus));
}

// Takes lines of a panel apart: decode(word, pair) makes the words of a pair of steps, of which
// there are kPairs.
template <int kPairs, typename Decode>
inline void decode_lines(const std::byte* weights, int64_t lines, int64_t ahead, std::byte* out,
                         const Decode& decode) {
  constexpr int64_t kLine = kPanel * 4, kVecBytes = Vec::kWidth * 4;
  for (int64_t line = 0; line < lines; ++line, weights += kLine, out += kPairs * kLine)
#pragma GCC unroll 4
    for (int64_t at = 0; at < kLine; at += kVecBytes) {
      if (ahead != 0 && at % 64 == 0) __builtin_prefetch(weights + at + ahead, 0, 3);
      const CodeWords words = load_words(weights + at);
#pragma GCC unroll 4
      for (int pair = 0; pair < kPairs; ++pair)
        store_words(out + pair * kLine + at, decode(words, pair, at));
    }
}

// What e8m0 scales add to the exponent of a bf16, in both halves of a word.
inline CodeWords exponents_of(const std::byte* scales) {
  const CodeWords moved = (Codes::widened(scales) - 127) << 7;
  return (moved & 0xffff) | moved << 16;
}

// Half of what they stand for. The lowest one is subnormal before it is halved.
inline Vec::F half_of_e8m0(const std::byte* scales) {
  const CodeWords exponents = Codes::widened(scales);
  const CodeWords lowest = reinterpret_cast<CodeWords>(exponents == 0) & 0x400000;
  return Vec::mul(reinterpret_cast<Vec::F>(exponents << 23 | lowest), Vec::set(0.5f));
}

// Groups of a panel to a bf16 panel. Where `ahead` is not 0, what is read so many bytes later is
// brought into L1.
inline void decode_e4m3(const std::byte* groups, const PanelLayout& layout, int64_t count,
                        int64_t ahead, std::byte* out) {
  const int64_t lines = layout.group_k / 4;
  for (int64_t g = 0; g < count; ++g, groups += layout.group_bytes, out += lines * 2 * kPanel * 4)
    decode_lines<2>(groups + layout.scale_bytes, lines, ahead, out,
                    [](CodeWords words, int pair, int64_t) { return Codes::e4m3(words, pair); });
}

inline void decode_e2m1(const std::byte* groups, const PanelLayout& layout, int64_t count,
                        int64_t ahead, std::byte* out) {
  constexpr int64_t kVecBytes = Vec::kWidth * 4;
  const int64_t lines = layout.group_k / 8;
  for (int64_t g = 0; g < count; ++g, groups += layout.group_bytes, out += lines * 4 * kPanel * 4) {
    CodeWords exponents[kPanel / Vec::kWidth];
    for (int64_t v = 0; v < kPanel / Vec::kWidth; ++v)
      exponents[v] = exponents_of(groups + v * Vec::kWidth);
    decode_lines<4>(groups + layout.scale_bytes, lines, ahead, out,
                    [&](CodeWords words, int pair, int64_t at) {
                      return Codes::e2m1(words, pair, exponents[at / kVecBytes]);
                    });
  }
}
