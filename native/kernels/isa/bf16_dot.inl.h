// bf16 products with vdpbf16ps (AVX-512 BF16).
// Included inside an anonymous namespace, after vec_avx512.inl.h: see isa/*.cpp.

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
};
