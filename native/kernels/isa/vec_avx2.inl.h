// AVX2 + FMA: eight lanes. Included inside an anonymous namespace: see isa/*.cpp.

struct Vec {
  static constexpr const char* kName = "fma, 8 lanes";
  using F = __m256;
  static constexpr int kWidth = 8;
  // 6 x 2 accumulators, 2 weights and 1 broadcast use 15 of 16 registers.
  static constexpr int kTileRows = 6;
  static constexpr int kTileVecs = 2;

  static F zero() { return _mm256_setzero_ps(); }
  static F set(float x) { return _mm256_set1_ps(x); }
  static F load(const float* p) { return _mm256_loadu_ps(p); }
  static void store(float* p, F x) { _mm256_storeu_ps(p, x); }
  static __m256i first(int64_t n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)),
                              _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }
  static F load_first(const float* p, int64_t n) { return _mm256_maskload_ps(p, first(n)); }
  static void store_first(float* p, F x, int64_t n) { _mm256_maskstore_ps(p, first(n), x); }
  static F widen(__m128i x) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16));
  }
  static F load_bf16(const uint16_t* p) {
    return widen(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  static F load_bf16_first(const uint16_t* p, int64_t n) {
    uint16_t copy[8] = {0, 0, 0, 0, 0, 0, 0, 0};
    for (int64_t i = 0; i < n; ++i) copy[i] = p[i];
    return load_bf16(copy);
  }
  static __m256i load_words(const uint32_t* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  }
  static F pair_even(const uint32_t* p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(load_words(p), 16));
  }
  static F pair_odd(const uint32_t* p) {
    return _mm256_castsi256_ps(
        _mm256_and_si256(load_words(p), _mm256_set1_epi32(static_cast<int>(0xffff0000u))));
  }
  static F add(F a, F b) { return _mm256_add_ps(a, b); }
  static F sub(F a, F b) { return _mm256_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm256_mul_ps(a, b); }
  static F div(F a, F b) { return _mm256_div_ps(a, b); }
  static F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  // A NaN in the second operand is returned.
  static F max(F a, F b) { return _mm256_max_ps(a, b); }
  static F min(F a, F b) { return _mm256_min_ps(a, b); }
  static F round(F x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  // n is whole and in the range of normal exponents.
  static F scale_by_power(F x, F n) {
    const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    return mul(x, _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23)));
  }
  // `value` where x >= limit or x is NaN, else 0.
  static F zero_where_below(F x, float limit, F value) {
    return _mm256_and_ps(_mm256_cmp_ps(x, set(limit), _CMP_NLT_UQ), value);
  }
  static float sum(F x) {
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
  }
  static float largest(F x) {
    __m128 b = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    b = _mm_max_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_max_ss(b, _mm_movehdup_ps(b)));
  }
  // In place, 8 x 8.
  static void transpose(F* x) {
    F y[8];
#pragma GCC unroll 2
    for (int i = 0; i < 8; i += 4) {
      const F a = _mm256_unpacklo_ps(x[i], x[i + 1]), b = _mm256_unpackhi_ps(x[i], x[i + 1]);
      const F c = _mm256_unpacklo_ps(x[i + 2], x[i + 3]);
      const F d = _mm256_unpackhi_ps(x[i + 2], x[i + 3]);
      y[i] = _mm256_shuffle_ps(a, c, 0x44);
      y[i + 1] = _mm256_shuffle_ps(a, c, 0xee);
      y[i + 2] = _mm256_shuffle_ps(b, d, 0x44);
      y[i + 3] = _mm256_shuffle_ps(b, d, 0xee);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      x[i] = _mm256_permute2f128_ps(y[i], y[i + 4], 0x20);
      x[i + 4] = _mm256_permute2f128_ps(y[i], y[i + 4], 0x31);
    }
  }
  // In place: 4 x 4 pairs of words.
  static void transpose_pairs(F* x) {
    __m256d y[4];
#pragma GCC unroll 2
    for (int i = 0; i < 4; i += 2) {
      const __m256d a = _mm256_castps_pd(x[i]), b = _mm256_castps_pd(x[i + 1]);
      y[i] = _mm256_unpacklo_pd(a, b);
      y[i + 1] = _mm256_unpackhi_pd(a, b);
    }
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
      x[i] = _mm256_castpd_ps(_mm256_permute2f128_pd(y[i], y[i + 2], 0x20));
      x[i + 2] = _mm256_castpd_ps(_mm256_permute2f128_pd(y[i], y[i + 2], 0x31));
    }
  }
  // Of each pair of words the second and the third half change places.
  static F swap_middle_halves(F x) {
    const __m256i order = _mm256_setr_epi32(0x05040100, 0x07060302, 0x0d0c0908, 0x0f0e0b0a,
                                            0x05040100, 0x07060302, 0x0d0c0908, 0x0f0e0b0a);
    return _mm256_castsi256_ps(_mm256_shuffle_epi8(_mm256_castps_si256(x), order));
  }
};
