// Small floats to bf16, sixteen words of 32 bits at a time, with vpermw and vpermi2w.
// Included inside an anonymous namespace, after vec_avx512.inl.h: see isa/*.cpp.

struct Codes {
  typedef uint32_t Words __attribute__((vector_size(64)));

  // Bytes to words.
  static Words widened(const std::byte* p) {
    return reinterpret_cast<Words>(
        _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
  }

  // What a table says of each byte, which is below 16.
  static Words bytes_at(const Bytes16& table, Words index) {
    const __m128i numbers = _mm_load_si128(reinterpret_cast<const __m128i*>(table.at));
    return reinterpret_cast<Words>(
        _mm512_shuffle_epi8(_mm512_broadcast_i32x4(numbers), reinterpret_cast<__m512i>(index)));
  }
  // And of each word, which is not negative.
  static Words words_at(const uint32_t* table, Words index) {
    return reinterpret_cast<Words>(
        _mm512_i32gather_epi32(reinterpret_cast<__m512i>(index), table, 4));
  }

  // 64 of the 128 magnitudes are looked up at a time; the seventh bit says which are right.
  static Words e4m3(Words w, int pair) {
    const __m512i all = reinterpret_cast<__m512i>(w);
    const __m512i code = pair == 0 ? all : _mm512_srli_epi16(all, 8);
    const __m512i sign = pair == 0 ? _mm512_slli_epi16(all, 8) : all;
    const __m512i small = _mm512_permutex2var_epi16(table(0), code, table(32));
    const __m512i large = _mm512_permutex2var_epi16(table(64), code, table(96));
    const __m512i size =
        _mm512_mask_mov_epi16(small, _mm512_test_epi16_mask(code, _mm512_set1_epi16(0x40)), large);
    constexpr int kFirstOrBothOthers = 0xf8;
    return reinterpret_cast<Words>(_mm512_ternarylogic_epi32(
        size, sign, _mm512_set1_epi16(static_cast<int16_t>(0x8000)), kFirstOrBothOthers));
  }

  // vpermw looks at five bits, of which the fifth belongs to the next code: the table has all
  // twice.
  static Words e2m1(Words w, int pair, Words exponents) {
    const __m512i code = reinterpret_cast<__m512i>(w >> (4 * pair));
    const __m512i bits = _mm512_permutexvar_epi16(code, _mm512_loadu_si512(kBf16OfE2m1.bits));
    return reinterpret_cast<Words>(
        _mm512_mask_add_epi16(bits, _mm512_test_epi16_mask(code, _mm512_set1_epi16(7)), bits,
                              reinterpret_cast<__m512i>(exponents)));
  }

  // 2 times a step, in fp32. vpermps looks at four bits.
  static __m512 twice_e2m1(Words w, int step) {
    const __m512 numbers =
        _mm512_setr_ps(0, 1, 2, 3, 4, 6, 8, 12, -0.0f, -1, -2, -3, -4, -6, -8, -12);
    return _mm512_permutexvar_ps(reinterpret_cast<__m512i>(w >> (step / 2 * 4 + step % 2 * 16)),
                                 numbers);
  }

 private:
  static __m512i table(int first) { return _mm512_loadu_si512(kBf16OfE4m3.bits + first); }
};
