// bf16 products with vdpbf16ps (AVX-512 BF16).
// Included inside an anonymous namespace, after decode.inl.h: see isa/*.cpp.

struct Bf16 {
  static constexpr const char* kName = "vdpbf16ps, 16 lanes";
  using Word = __m512i;
  static constexpr int kTileRows = Vec::kTileRows;
  static constexpr int kTileVecs = Vec::kTileVecs;
  static constexpr int kParts = 1;

  static Word weights(const std::byte* p, int) { return _mm512_loadu_si512(p); }
  static Word row(const std::byte* p, int) {
    int32_t pair;
    __builtin_memcpy(&pair, p, 4);
    return _mm512_set1_epi32(pair);
  }
  static Vec::F dot(Vec::F acc, Word w, Word a) {
    return _mm512_dpbf16_ps(acc, reinterpret_cast<__m512bh>(w), reinterpret_cast<__m512bh>(a));
  }

  static Word of_pairs(CodeWords pairs, int) { return reinterpret_cast<Word>(pairs); }
  using E2m1Scale = CodeWords;
  static E2m1Scale e2m1_scale(const std::byte* scales) { return exponents_of(scales); }
  static Word e2m1(CodeWords words, int part, E2m1Scale scale) {
    return reinterpret_cast<Word>(Codes::e2m1(words, part, scale));
  }
};
