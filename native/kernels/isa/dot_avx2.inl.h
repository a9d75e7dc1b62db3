// Integer products of eight lanes with vpmaddubsw and vpmaddwd.
// Included inside an anonymous namespace, after vec_avx2.inl.h: see isa/*.cpp.

struct Dot {
  static constexpr const char* kName = "vpmaddubsw, 8 lanes";
  using I = __m256i;
  // 8 accumulators, 2 weights, their magnitudes, a broadcast, ones and a product use 15 of 16.
  static constexpr int kTileRows = 4;
  static constexpr int kTileVecs = 2;
  // vpmaddubsw saturates at 16 bits, which 255 * 127 * 2 exceeds: 8-bit weights are made signed
  // first and their sign is moved to the activations.
  static constexpr int32_t kBias8 = 0;

  static I set(int32_t x) { return _mm256_set1_epi32(x); }
  static I load(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
  static void store(void* p, I x) { _mm256_storeu_si256(static_cast<__m256i*>(p), x); }
  static I row(const std::byte* p) {
    int32_t word;
    __builtin_memcpy(&word, p, 4);
    return set(word);
  }
  static I weights8(I w) { return _mm256_xor_si256(w, _mm256_set1_epi8(-128)); }
  static I low_nibbles(I w) { return _mm256_and_si256(w, _mm256_set1_epi8(15)); }
  static I high_nibbles(I w) {
    return _mm256_and_si256(_mm256_srli_epi16(w, 4), _mm256_set1_epi8(15));
  }
  static I dot4(I acc, I w, I a) {
    const I pairs = _mm256_maddubs_epi16(w, a);
    return _mm256_add_epi32(acc, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
  }
  static I dot8(I acc, I w, I a) { return dot4(acc, _mm256_abs_epi8(w), _mm256_sign_epi8(a, w)); }
  static Vec::F to_float(I x) { return _mm256_cvtepi32_ps(x); }
};
