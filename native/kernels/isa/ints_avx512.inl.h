// Vectors of sixteen 32-bit integers: what all integer products on them share.
// Included inside an anonymous namespace, after vec_avx512.inl.h: see isa/*.cpp.

struct Ints {
  using I = __m512i;
  static I set(int32_t x) { return _mm512_set1_epi32(x); }
  static I load(const void* p) { return _mm512_loadu_si512(p); }
  static void store(void* p, I x) { _mm512_storeu_si512(p, x); }
  // Four activations in every lane.
  static I row(const std::byte* p) {
    int32_t word;
    __builtin_memcpy(&word, p, 4);
    return set(word);
  }
  static I low_nibbles(I w) { return _mm512_and_si512(w, _mm512_set1_epi8(15)); }
  static I high_nibbles(I w) {
    return _mm512_and_si512(_mm512_srli_epi16(w, 4), _mm512_set1_epi8(15));
  }
  // Of each lane, with its sign.
  static I low_half(I x) { return _mm512_srai_epi32(_mm512_slli_epi32(x, 16), 16); }
  static Vec::F to_float(I x) { return _mm512_cvtepi32_ps(x); }
};
