// Integer products of sixteen lanes with vpmaddubsw and vpmaddwd.
// Included inside an anonymous namespace, after ints_avx512.inl.h: see isa/*.cpp.

struct Dot : Ints {
  static constexpr const char* kName = "vpmaddubsw, 16 lanes";
  static constexpr int kTileRows = 5;
  static constexpr int kTileVecs = 4;
  // vpmaddubsw saturates at 16 bits, which 255 * 127 * 2 exceeds: 8-bit weights are made signed
  // first and their sign is moved to the activations.
  static constexpr int32_t kBias8 = 0;

  static I weights8(I w) { return _mm512_xor_si512(w, _mm512_set1_epi8(-128)); }
  static I dot4(I acc, I w, I a) {
    const I pairs = _mm512_maddubs_epi16(w, a);
    return _mm512_add_epi32(acc, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
  }
  static I dot8(I acc, I w, I a) {
    const I turned = _mm512_mask_sub_epi8(a, _mm512_movepi8_mask(w), _mm512_setzero_si512(), a);
    return dot4(acc, _mm512_abs_epi8(w), turned);
  }
};
