// AVX-512 F/BW/DQ/VL: sixteen lanes. Included inside an anonymous namespace: see isa/*.cpp.

struct Vec {
  static constexpr const char* kName = "fma, 16 lanes";
  using F = __m512;
  static constexpr int kWidth = 16;
  // 6 x 4 accumulators, 4 weights and 1 broadcast use 29 of 32 registers.
  static constexpr int kTileRows = 6;
  static constexpr int kTileVecs = 4;

  static F zero() { return _mm512_setzero_ps(); }
  static F set(float x) { return _mm512_set1_ps(x); }
  static F load(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, F x) { _mm512_storeu_ps(p, x); }
  static __mmask16 first(int64_t n) { return static_cast<__mmask16>((1u << n) - 1u); }
  static F load_first(const float* p, int64_t n) { return _mm512_maskz_loadu_ps(first(n), p); }
  static void store_first(float* p, F x, int64_t n) { _mm512_mask_storeu_ps(p, first(n), x); }
  static F widen(__m256i x) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
  }
  static F load_bf16(const uint16_t* p) {
    return widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static F load_bf16_first(const uint16_t* p, int64_t n) {
    return widen(_mm256_maskz_loadu_epi16(first(n), p));
  }
  static F pair_even(const uint32_t* p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(p), 16));
  }
  static F pair_odd(const uint32_t* p) {
    return _mm512_castsi512_ps(
        _mm512_and_si512(_mm512_loadu_si512(p), _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
  }
  static F add(F a, F b) { return _mm512_add_ps(a, b); }
  static F sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static F div(F a, F b) { return _mm512_div_ps(a, b); }
  static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  // A NaN in the second operand is returned.
  static F max(F a, F b) { return _mm512_max_ps(a, b); }
  static F min(F a, F b) { return _mm512_min_ps(a, b); }
  static F round(F x) {
    return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  static F scale_by_power(F x, F n) { return _mm512_scalef_ps(x, n); }
  // `value` where x >= limit or x is NaN, else 0.
  static F zero_where_below(F x, float limit, F value) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, set(limit), _CMP_NLT_UQ), value);
  }
  static __m256 halves(F x, int high) {
    return high != 0 ? _mm512_extractf32x8_ps(x, 1) : _mm512_castps512_ps256(x);
  }
  static float sum(F x) {
    const __m256 a = _mm256_add_ps(halves(x, 0), halves(x, 1));
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
  }
  static float largest(F x) {
    const __m256 a = _mm256_max_ps(halves(x, 0), halves(x, 1));
    __m128 b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_max_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_max_ss(b, _mm_movehdup_ps(b)));
  }
  // In place, 16 x 16: 4 x 4 blocks inside 128-bit lanes, then the lanes.
  static void transpose(F* x) {
    F y[16];
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) {
      const F a = _mm512_unpacklo_ps(x[i], x[i + 1]), b = _mm512_unpackhi_ps(x[i], x[i + 1]);
      const F c = _mm512_unpacklo_ps(x[i + 2], x[i + 3]);
      const F d = _mm512_unpackhi_ps(x[i + 2], x[i + 3]);
      y[i] = _mm512_shuffle_ps(a, c, 0x44);
      y[i + 1] = _mm512_shuffle_ps(a, c, 0xee);
      y[i + 2] = _mm512_shuffle_ps(b, d, 0x44);
      y[i + 3] = _mm512_shuffle_ps(b, d, 0xee);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const F a = _mm512_shuffle_f32x4(y[i], y[i + 4], 0x88);
      const F b = _mm512_shuffle_f32x4(y[i], y[i + 4], 0xdd);
      const F c = _mm512_shuffle_f32x4(y[i + 8], y[i + 12], 0x88);
      const F d = _mm512_shuffle_f32x4(y[i + 8], y[i + 12], 0xdd);
      x[i] = _mm512_shuffle_f32x4(a, c, 0x88);
      x[i + 8] = _mm512_shuffle_f32x4(a, c, 0xdd);
      x[i + 4] = _mm512_shuffle_f32x4(b, d, 0x88);
      x[i + 12] = _mm512_shuffle_f32x4(b, d, 0xdd);
    }
  }
  // In place: 8 x 8 pairs of words.
  static void transpose_pairs(F* x) {
    __m512d y[8];
#pragma GCC unroll 4
    for (int i = 0; i < 8; i += 2) {
      const __m512d a = _mm512_castps_pd(x[i]), b = _mm512_castps_pd(x[i + 1]);
      y[i] = _mm512_unpacklo_pd(a, b);
      y[i + 1] = _mm512_unpackhi_pd(a, b);
    }
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
      const __m512d a = _mm512_shuffle_f64x2(y[i], y[i + 2], 0x88);
      const __m512d b = _mm512_shuffle_f64x2(y[i], y[i + 2], 0xdd);
      const __m512d c = _mm512_shuffle_f64x2(y[i + 4], y[i + 6], 0x88);
      const __m512d d = _mm512_shuffle_f64x2(y[i + 4], y[i + 6], 0xdd);
      x[i] = _mm512_castpd_ps(_mm512_shuffle_f64x2(a, c, 0x88));
      x[i + 2] = _mm512_castpd_ps(_mm512_shuffle_f64x2(b, d, 0x88));
      x[i + 4] = _mm512_castpd_ps(_mm512_shuffle_f64x2(a, c, 0xdd));
      x[i + 6] = _mm512_castpd_ps(_mm512_shuffle_f64x2(b, d, 0xdd));
    }
  }
  // Of each pair of words the second and the third half change places.
  static F swap_middle_halves(F x) {
    const __m512i order = _mm512_set4_epi32(0x0f0e0b0a, 0x0d0c0908, 0x07060302, 0x05040100);
    return _mm512_castsi512_ps(_mm512_shuffle_epi8(_mm512_castps_si512(x), order));
  }
};
