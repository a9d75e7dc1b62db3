// Integer products of sixteen lanes with vpdpbusd (AVX-512 VNNI).
// Included inside an anonymous namespace, after vec_avx512.inl.h: see isa/*.cpp.

struct Dot {
  static constexpr const char* kName = "vpdpbusd, 16 lanes";
  using I = __m512i;
  // 6 x 4 accumulators, 4 weights, a broadcast and a mask use 30 of 32 registers.
  static constexpr int kTileRows = 6;
  static constexpr int kTileVecs = 4;
  static constexpr int32_t kBias8 = 128;

  static I add(I a, I b) { return _mm512_add_epi32(a, b); }
  static I set(int32_t x) { return _mm512_set1_epi32(x); }
  static I load(const void* p) { return _mm512_loadu_si512(p); }
  static void store(void* p, I x) { _mm512_storeu_si512(p, x); }
  static I row(const std::byte* p) {
    int32_t word;
    __builtin_memcpy(&word, p, 4);
    return set(word);
  }
  static I weights8(I w) { return w; }
  static I low_nibbles(I w) { return _mm512_and_si512(w, _mm512_set1_epi8(15)); }
  static I high_nibbles(I w) {
    return _mm512_and_si512(_mm512_srli_epi16(w, 4), _mm512_set1_epi8(15));
  }
  static I dot8(I acc, I w, I a) { return _mm512_dpbusd_epi32(acc, w, a); }
  static I dot4(I acc, I w, I a) { return dot8(acc, w, a); }
  static Vec::F to_float(I x) { return _mm512_cvtepi32_ps(x); }
};
