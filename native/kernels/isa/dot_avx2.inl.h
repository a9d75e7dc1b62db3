// Integer products of eight lanes with vpmaddubsw and vpmaddwd.
// Included inside an anonymous namespace, after ints_avx2.inl.h: see isa/*.cpp.

struct Dot : Ints {
  static constexpr const char* kName = "vpmaddubsw, 8 lanes";
  // 8 accumulators, 2 weights, their magnitudes, a broadcast, ones and a product use 15 of 16.
  static constexpr int kTileRows = 4;
  static constexpr int kTileVecs = 2;
  // vpmaddubsw saturates at 16 bits, which 255 * 127 * 2 exceeds: 8-bit weights are made signed
  // first and their sign is moved to the activations.
  static constexpr int32_t kBias8 = 0;

  static I weights8(I w) { return _mm256_xor_si256(w, _mm256_set1_epi8(-128)); }
  static I dot4(I acc, I w, I a) {
    const I pairs = _mm256_maddubs_epi16(w, a);
    return _mm256_add_epi32(acc, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
  }
  static I dot8(I acc, I w, I a) { return dot4(acc, _mm256_abs_epi8(w), _mm256_sign_epi8(a, w)); }
};
