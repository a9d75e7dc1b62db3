// Small floats to bf16, eight words of 32 bits at a time, with vpshufb.
// Included inside an anonymous namespace, after vec_avx2.inl.h: see isa/*.cpp.

struct Codes {
  typedef uint32_t Words __attribute__((vector_size(32)));
  typedef uint16_t Halves __attribute__((vector_size(32)));
  typedef uint8_t Bytes __attribute__((vector_size(32)));

  // Bytes to words.
  static Words widened(const std::byte* p) {
    return reinterpret_cast<Words>(
        _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
  }

  // What a table says of each byte, which is below 16.
  static Words bytes_at(const Bytes16& table, Words index) {
    const __m128i numbers = _mm_load_si128(reinterpret_cast<const __m128i*>(table.at));
    return reinterpret_cast<Words>(looked_up(numbers, reinterpret_cast<Bytes>(index)));
  }
  // And of each word, which is not negative.
  static Words words_at(const uint32_t* table, Words index) {
    return reinterpret_cast<Words>(_mm256_i32gather_epi32(reinterpret_cast<const int*>(table),
                                                          reinterpret_cast<__m256i>(index), 4));
  }

  // The bytes of a bf16: the high one is 60 + size / 16, the low one size * 16, but for sizes below
  // 8, which are subnormal. There two tables say what has to be taken away and flipped; the others
  // are moved out of the tables' reach, where vpshufb gives 0.
  static Words e4m3(Words w, int pair) {
    const __m128i too_high = _mm_setr_epi8(60, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
    const __m128i flipped = _mm_setr_epi8(0, 0x10, byte(0xa0), byte(0xf0), 0x40, 0x70, 0x20, 0x10,
                                          0, 0, 0, 0, 0, 0, 0, 0);
    const Bytes all = reinterpret_cast<Bytes>(w);
    const Bytes size = all & 0x7f;
    const Bytes index = reinterpret_cast<Bytes>(
        _mm256_adds_epu8(reinterpret_cast<__m256i>(size), _mm256_set1_epi8(0x70)));
    const Bytes quarter = reinterpret_cast<Bytes>(reinterpret_cast<Halves>(size) >> 4) & 0x07;
    const Bytes high = (quarter + 60 - looked_up(too_high, index)) | (all & 0x80);
    const Bytes low = (reinterpret_cast<Bytes>(reinterpret_cast<Halves>(size) << 4) & 0xf0) ^
                      looked_up(flipped, index);
    const Halves h = reinterpret_cast<Halves>(high), l = reinterpret_cast<Halves>(low);
    const Halves bits = pair == 0 ? (h << 8) | (l & 0xff) : (h & 0xff00) | (l >> 8);
    return reinterpret_cast<Words>(bits);
  }

  static Words e2m1(Words w, int pair, Words exponents) {
    const char c = byte(0xc0), b = byte(0xbf), z = byte(0x80);
    const __m128i high_bytes =
        _mm_setr_epi8(0, 0x3f, 0x3f, 0x3f, 0x40, 0x40, 0x40, 0x40, z, b, b, b, c, c, c, c);
    const __m128i low_bytes = _mm_setr_epi8(0, 0, z, c, 0, 0x40, z, c, 0, 0, z, c, 0, 0x40, z, c);
    const Halves code = reinterpret_cast<Halves>(w >> (4 * pair)) & 15;
    const Bytes index = reinterpret_cast<Bytes>(code);
    const Halves high = reinterpret_cast<Halves>(looked_up(high_bytes, index));
    const Halves low = reinterpret_cast<Halves>(looked_up(low_bytes, index));
    const Halves by =
        reinterpret_cast<Halves>(exponents) & reinterpret_cast<Halves>((code & 7) != 0);
    return reinterpret_cast<Words>((high << 8 | low) + by);
  }

  // 2 times a step, in fp32: whole numbers, looked up in bytes.
  static __m256 twice_e2m1(Words w, int step) {
    typedef int32_t Ints __attribute__((vector_size(32)));
    const __m128i numbers = _mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12);
    const Bytes code = reinterpret_cast<Bytes>(step / 2 % 2 == 0 ? w : w >> 4) & 0x0f;
    const int byte = step / 4 + step % 2 * 2;
    const Ints words = reinterpret_cast<Ints>(looked_up(numbers, code));
    return _mm256_cvtepi32_ps(reinterpret_cast<__m256i>(words << (24 - 8 * byte) >> 24));
  }

 private:
  static constexpr char byte(int x) { return static_cast<char>(x); }
  static Bytes looked_up(__m128i table, Bytes index) {
    return reinterpret_cast<Bytes>(
        _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), reinterpret_cast<__m256i>(index)));
  }
};
