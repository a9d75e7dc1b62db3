// Vectors of eight 32-bit integers: what all integer products on them share.
// Included inside an anonymous namespace, after vec_avx2.inl.h: see isa/*.cpp.

struct Ints {
  using I = __m256i;
  static I set(int32_t x) { return _mm256_set1_epi32(x); }
  static I load(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
  static void store(void* p, I x) { _mm256_storeu_si256(static_cast<__m256i*>(p), x); }
  // Four activations in every lane.
  static I row(const std::byte* p) {
    int32_t word;
    __builtin_memcpy(&word, p, 4);
    return set(word);
  }
  static I low_nibbles(I w) { return _mm256_and_si256(w, _mm256_set1_epi8(15)); }
  static I high_nibbles(I w) {
    return _mm256_and_si256(_mm256_srli_epi16(w, 4), _mm256_set1_epi8(15));
  }
  // Of each lane, with its sign.
  static I low_half(I x) { return _mm256_srai_epi32(_mm256_slli_epi32(x, 16), 16); }
  static Vec::F to_float(I x) { return _mm256_cvtepi32_ps(x); }
};
