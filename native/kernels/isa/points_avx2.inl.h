// Weights that are looked up in a grid by loads of points, which takes 0.6 to 0.8 of the time of
// gathers. Where points are words alone, gathers are as fast.
// Included inside an anonymous namespace, after decode.inl.h: see isa/*.cpp.

// Sixteen weights of each column: points[p] is the number of the p-th point of each column, of
// eight weights, which are two words of the grid.
struct Points {
  // As four words of four weights: 64 plus or minus what the grid says; minus where a bit of
  // `signs` is one, the lowest first.
  static void with_signs(const uint32_t* grid, const CodeWords* points, CodeWords signs,
                         CodeWords* out) {
    transpose(rows(grid, points, signs,
                   [](__m256i sizes, __m256i bits) {
                     const __m256i by = minus(bits);
                     const __m256i weights = _mm256_sub_epi8(_mm256_xor_si256(sizes, by), by);
                     return _mm256_add_epi8(weights, _mm256_set1_epi8(64));
                   }),
              out);
  }

  // As words: what the grid says, less a byte of `offsets` for each point.
  static void with_offsets(const uint32_t* grid, const CodeWords* points, CodeWords offsets,
                           CodeWords* out) {
    transpose(rows(grid, points, offsets,
                   [](__m256i numbers, __m256i by) { return _mm256_sub_epi8(numbers, by); }),
              out);
  }

  // Of columns c and c + 4 of eight something in the halves of of[][c]; of `products_...` what is
  // to be added up.
  struct Rows {
    __m256i of[Vec::kWidth / 8][4];
    void add(const Rows& more) {
      for (int e = 0; e < kEights; ++e)
        for (int c = 0; c < 4; ++c) of[e][c] = _mm256_add_epi32(of[e][c], more.of[e][c]);
    }
    Dot::I sums() const {
      __m256i total[kEights];
      for (int e = 0; e < kEights; ++e)
        total[e] = _mm256_hadd_epi32(_mm256_hadd_epi32(of[e][0], of[e][1]),
                                     _mm256_hadd_epi32(of[e][2], of[e][3]));
      Dot::I sums;
      __builtin_memcpy(&sums, total, sizeof sums);
      return sums;
    }
  };

  // Of the weights of `with_signs`, without the 64.
  static Rows products_with_signs(const uint32_t* grid, const CodeWords* points, CodeWords signs,
                                  const std::byte* row) {
    const __m256i x = sixteen(row);
    return rows(grid, points, signs, [x](__m256i sizes, __m256i bits) {
      return pairs(sizes, _mm256_sign_epi8(x, _mm256_or_si256(minus(bits), _mm256_set1_epi8(1))));
    });
  }

  // Of the weights of `with_offsets`.
  static Rows products_with_offsets(const uint32_t* grid, const CodeWords* points,
                                    CodeWords offsets, const std::byte* row) {
    const __m256i x = sixteen(row);
    return rows(grid, points, offsets, [x](__m256i numbers, __m256i by) {
      return pairs(_mm256_sub_epi8(numbers, by), x);
    });
  }

 private:
  static constexpr int kEights = Vec::kWidth / 8;

  // All ones where a byte has the bit that its place among eight asks for.
  static __m256i minus(__m256i bytes) {
    const __m256i bit = _mm256_set1_epi64x(static_cast<int64_t>(0x8040201008040201));
    return _mm256_cmpeq_epi8(_mm256_and_si256(bytes, bit), bit);
  }
  // What a grid says is below 64.
  static __m256i pairs(__m256i weights, __m256i x) {
    return _mm256_madd_epi16(_mm256_maddubs_epi16(weights, x), _mm256_set1_epi16(1));
  }
  static __m256i sixteen(const std::byte* row) {
    return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(row)));
  }

  // Calls body(weights, bytes) for the weights of columns c and c + 4 of eight, one in each half,
  // and a byte of `more` beside each: the lowest one of the column for the first eight weights, the
  // next one for the others.
  template <typename Body>
  static Rows rows(const uint32_t* grid, const CodeWords* points, CodeWords more,
                   const Body& body) {
    alignas(64) uint32_t at[2][Vec::kWidth];
    __builtin_memcpy(at, points, sizeof at);
    // From memory a number is one load; a compiler takes them out of vectors, which is three steps.
    asm("" : "+m"(at));
    const auto point = [&](int p, int column) {
      int64_t words;
      __builtin_memcpy(&words, grid + std::size_t{2} * at[p][column], sizeof words);
      return words;
    };
    __m256i beside[kEights];
    __builtin_memcpy(beside, &more, sizeof beside);
    Rows made;
#pragma GCC unroll 2
    for (int e = 0; e < kEights; ++e)
#pragma GCC unroll 4
      for (int c = 0; c < 4; ++c) {
        const int column = 8 * e + c;
        const __m256i weights = _mm256_set_epi64x(point(1, column + 4), point(0, column + 4),
                                                  point(1, column), point(0, column));
        made.of[e][c] = body(weights, _mm256_shuffle_epi8(beside[e], two(4 * c)));
      }
    return made;
  }

  static void transpose(const Rows& rows, CodeWords* out) {
    __m256i words[4][kEights];
    for (int e = 0; e < kEights; ++e) {
      const __m256i low01 = _mm256_unpacklo_epi32(rows.of[e][0], rows.of[e][1]);
      const __m256i low23 = _mm256_unpacklo_epi32(rows.of[e][2], rows.of[e][3]);
      const __m256i high01 = _mm256_unpackhi_epi32(rows.of[e][0], rows.of[e][1]);
      const __m256i high23 = _mm256_unpackhi_epi32(rows.of[e][2], rows.of[e][3]);
      words[0][e] = _mm256_unpacklo_epi64(low01, low23);
      words[1][e] = _mm256_unpackhi_epi64(low01, low23);
      words[2][e] = _mm256_unpacklo_epi64(high01, high23);
      words[3][e] = _mm256_unpackhi_epi64(high01, high23);
    }
    __builtin_memcpy(out, words, sizeof words);
  }

  // Numbers of a byte and of the next, eight times each, in both halves.
  static __m256i two(int64_t byte) {
    constexpr int64_t kEach = 0x0101010101010101;
    const int64_t first = byte * kEach, second = first + kEach;
    return _mm256_set_epi64x(second, first, second, first);
  }
};
