// Four lanes of the compiler's vector extension, which become SSE2 on x86-64 and NEON on aarch64.
// Multiply and add are two roundings here (the whole core is compiled with -ffp-contract=off), so
// that a row's bits do not depend on what the compiler fuses.
// Included inside an anonymous namespace: see isa/*.cpp.

struct Vec {
  static constexpr const char* kName = "plain, 4 lanes";
  typedef float F __attribute__((vector_size(16)));
  typedef int32_t I __attribute__((vector_size(16)));
  typedef uint32_t U __attribute__((vector_size(16)));
  static constexpr int kWidth = 4;
  // 2 x 4 accumulators, 4 weights, a product and a broadcast use 14 of 16 registers.
  static constexpr int kTileRows = 2;
  static constexpr int kTileVecs = 4;

  static F zero() { return F{0, 0, 0, 0}; }
  static F set(float x) { return F{x, x, x, x}; }
  static F load(const float* p) {
    F x;
    __builtin_memcpy(&x, p, sizeof x);
    return x;
  }
  static void store(float* p, F x) { __builtin_memcpy(p, &x, sizeof x); }
  static F load_first(const float* p, int64_t n) {
    F x = zero();
    for (int64_t i = 0; i < n; ++i) x[i] = p[i];
    return x;
  }
  static void store_first(float* p, F x, int64_t n) {
    for (int64_t i = 0; i < n; ++i) p[i] = x[i];
  }
  static F load_bf16(const uint16_t* p) { return load_bf16_first(p, kWidth); }
  static F load_bf16_first(const uint16_t* p, int64_t n) {
    U x = {0, 0, 0, 0};
    for (int64_t i = 0; i < n; ++i) x[i] = static_cast<uint32_t>(p[i]) << 16;
    return reinterpret_cast<F>(x);
  }
  static U load_words(const uint32_t* p) {
    U x;
    __builtin_memcpy(&x, p, sizeof x);
    return x;
  }
  static F pair_even(const uint32_t* p) { return reinterpret_cast<F>(load_words(p) << 16); }
  static F pair_odd(const uint32_t* p) { return reinterpret_cast<F>(load_words(p) & 0xffff0000u); }
  static F add(F a, F b) { return a + b; }
  static F sub(F a, F b) { return a - b; }
  static F mul(F a, F b) { return a * b; }
  static F div(F a, F b) { return a / b; }
  static F fma(F a, F b, F c) { return a * b + c; }
  // A NaN in the second operand is returned.
  static F max(F a, F b) { return a > b ? a : b; }
  static F min(F a, F b) { return a < b ? a : b; }
  // |x| is below 2^22: adding and taking away 1.5 * 2^23 leaves the nearest whole number.
  static F round(F x) { return (x + 12582912.0f) - 12582912.0f; }
  // n is whole and in the range of normal exponents; a NaN x gives NaN whatever n becomes.
  static F scale_by_power(F x, F n) {
    const I shifted = reinterpret_cast<I>(n + 12582912.0f) - 0x4b400000;
    return x * reinterpret_cast<F>((shifted + 127) << 23);
  }
  // `value` where x >= limit or x is NaN, else 0.
  static F zero_where_below(F x, float limit, F value) {
    return reinterpret_cast<F>(~(x < limit) & reinterpret_cast<I>(value));
  }
  static float sum(F x) { return (x[0] + x[2]) + (x[1] + x[3]); }
  static float largest(F x) {
    const float a = x[0] > x[2] ? x[0] : x[2], b = x[1] > x[3] ? x[1] : x[3];
    return a > b ? a : b;
  }
  static void transpose(F* x) {
    for (int i = 0; i < 4; ++i)
      for (int j = 0; j < i; ++j) {
        const float swapped = x[i][j];
        x[i][j] = x[j][i];
        x[j][i] = swapped;
      }
  }
  // In place: 2 x 2 pairs of words.
  static void transpose_pairs(F* x) {
    const F a = x[0], b = x[1];
    x[0] = F{a[0], a[1], b[0], b[1]};
    x[1] = F{a[2], a[3], b[2], b[3]};
  }
  // Of each pair of words the second and the third half change places.
  static F swap_middle_halves(F x) {
    typedef uint64_t Pairs __attribute__((vector_size(16)));
    const Pairs pairs = reinterpret_cast<Pairs>(x);
    return reinterpret_cast<F>((pairs & 0xffff00000000ffffu) | (pairs & 0xffff0000u) << 16 |
                               (pairs >> 16 & 0xffff0000u));
  }
};
