// Integer products of eight lanes with vpdpbusd (AVX-VNNI).
// Included inside an anonymous namespace, after ints_avx2.inl.h: see isa/*.cpp.

struct Dot : Ints {
  static constexpr const char* kName = "vpdpbusd, 8 lanes";
  // 12 accumulators, 2 weights and a broadcast use 15 of 16 registers.
  static constexpr int kTileRows = 6;
  static constexpr int kTileVecs = 2;
  static constexpr int32_t kBias8 = 128;

  static I weights8(I w) { return w; }
  static I dot8(I acc, I w, I a) { return _mm256_dpbusd_avx_epi32(acc, w, a); }
  static I dot4(I acc, I w, I a) { return dot8(acc, w, a); }
};
