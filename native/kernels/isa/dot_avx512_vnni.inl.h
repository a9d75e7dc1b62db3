// Integer products of sixteen lanes with vpdpbusd (AVX-512 VNNI).
// Included inside an anonymous namespace, after ints_avx512.inl.h: see isa/*.cpp.

struct Dot : Ints {
  static constexpr const char* kName = "vpdpbusd, 16 lanes";
  // 6 x 4 accumulators, 4 weights, a broadcast and a mask use 30 of 32 registers.
  static constexpr int kTileRows = 6;
  static constexpr int kTileVecs = 4;
  static constexpr int32_t kBias8 = 128;

  static I add(I a, I b) { return _mm512_add_epi32(a, b); }
  static I weights8(I w) { return w; }
  static I dot8(I acc, I w, I a) { return _mm512_dpbusd_epi32(acc, w, a); }
  static I dot4(I acc, I w, I a) { return dot8(acc, w, a); }
};
