// Integer products of eight lanes with vpdpbusd (AVX-VNNI).
// Included inside an anonymous namespace, after vec_avx2.inl.h: see isa/*.cpp.

struct Dot {
  static constexpr const char* kName = "vpdpbusd, 8 lanes";
  using I = __m256i;
  // 12 accumulators, 2 weights and a broadcast use 15 of 16 registers.
  static constexpr int kTileRows = 6;
  static constexpr int kTileVecs = 2;
  static constexpr int32_t kBias8 = 128;

  static I set(int32_t x) { return _mm256_set1_epi32(x); }
  static I load(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
  static void store(void* p, I x) { _mm256_storeu_si256(static_cast<__m256i*>(p), x); }
  static I row(const std::byte* p) {
    int32_t word;
    __builtin_memcpy(&word, p, 4);
    return set(word);
  }
  static I weights8(I w) { return w; }
  static I low_nibbles(I w) { return _mm256_and_si256(w, _mm256_set1_epi8(15)); }
  static I high_nibbles(I w) {
    return _mm256_and_si256(_mm256_srli_epi16(w, 4), _mm256_set1_epi8(15));
  }
  static I dot8(I acc, I w, I a) { return _mm256_dpbusd_avx_epi32(acc, w, a); }
  static I dot4(I acc, I w, I a) { return dot8(acc, w, a); }
  static Vec::F to_float(I x) { return _mm256_cvtepi32_ps(x); }
};
