#include "blake2b_avx2.h"

#include <immintrin.h>

#include <cstddef>
#include <cstring>
#include <utility>

#include "../blake2b_tables.h"

namespace inlay::isa {

namespace {

using Row = __m256i;

Row rotate_32(Row x) { return _mm256_shuffle_epi32(x, _MM_SHUFFLE(2, 3, 0, 1)); }
Row rotate_24(Row x) {
  const __m128i order = _mm_setr_epi8(3, 4, 5, 6, 7, 0, 1, 2, 11, 12, 13, 14, 15, 8, 9, 10);
  return _mm256_shuffle_epi8(x, _mm256_broadcastsi128_si256(order));
}
Row rotate_16(Row x) {
  const __m128i order = _mm_setr_epi8(2, 3, 4, 5, 6, 7, 0, 1, 10, 11, 12, 13, 14, 15, 8, 9);
  return _mm256_shuffle_epi8(x, _mm256_broadcastsi128_si256(order));
}
Row rotate_63(Row x) { return _mm256_or_si256(_mm256_add_epi64(x, x), _mm256_srli_epi64(x, 63)); }

Row load_row(const uint64_t* words) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(words));
}

Row word(const uint8_t* block, std::size_t number) {
  int64_t value;
  std::memcpy(&value, block + number * sizeof(value), sizeof(value));
  return _mm256_set1_epi64x(value);
}

// Loads and blends leave alone the port that shuffles need, which a gather of words would take.
[[gnu::always_inline]] inline Row words(const uint8_t* block, std::size_t a, std::size_t b,
                                        std::size_t c, std::size_t d) {
  const Row low = _mm256_blend_epi32(word(block, a), word(block, b), 0x0c);
  const Row high = _mm256_blend_epi32(word(block, c), word(block, d), 0xc0);
  return _mm256_blend_epi32(low, high, 0xf0);
}

struct Rows {
  Row a, b, c, d;
};

// In this order, which compilers would change: b is the last to be known.
[[gnu::always_inline]] inline Row add(Row a, Row x, Row b) {
  Row sum = _mm256_add_epi64(a, x);
  __asm__("" : "+x"(sum));
  return _mm256_add_epi64(sum, b);
}

[[gnu::always_inline]] inline void mix(Rows& v, Row x, Row y) {
  v.a = add(v.a, x, v.b);
  v.d = rotate_32(_mm256_xor_si256(v.d, v.a));
  v.c = _mm256_add_epi64(v.c, v.d);
  v.b = rotate_24(_mm256_xor_si256(v.b, v.c));
  v.a = add(v.a, y, v.b);
  v.d = rotate_16(_mm256_xor_si256(v.d, v.a));
  v.c = _mm256_add_epi64(v.c, v.d);
  v.b = rotate_63(_mm256_xor_si256(v.b, v.c));
}

// Of the rows, b is the last to be known, so the others are turned to the diagonals that begin
// where b stands. The words of the second half are in the order of these diagonals.
template <std::size_t kRound>
[[gnu::always_inline]] inline void mix_round(Rows& v, const uint8_t* block) {
  constexpr const uint8_t* s = kBlake2bOrder[kRound % 10];
  mix(v, words(block, s[0], s[2], s[4], s[6]), words(block, s[1], s[3], s[5], s[7]));
  v.a = _mm256_permute4x64_epi64(v.a, _MM_SHUFFLE(2, 1, 0, 3));
  v.c = _mm256_permute4x64_epi64(v.c, _MM_SHUFFLE(0, 3, 2, 1));
  v.d = _mm256_permute4x64_epi64(v.d, _MM_SHUFFLE(1, 0, 3, 2));
  mix(v, words(block, s[14], s[8], s[10], s[12]), words(block, s[15], s[9], s[11], s[13]));
  v.a = _mm256_permute4x64_epi64(v.a, _MM_SHUFFLE(0, 3, 2, 1));
  v.c = _mm256_permute4x64_epi64(v.c, _MM_SHUFFLE(2, 1, 0, 3));
  v.d = _mm256_permute4x64_epi64(v.d, _MM_SHUFFLE(1, 0, 3, 2));
}

template <std::size_t... kRounds>
[[gnu::always_inline]] inline void mix_rounds(Rows& v, const uint8_t* block,
                                              std::index_sequence<kRounds...>) {
  (mix_round<kRounds>(v, block), ...);
}

}  // namespace

// Source of the layout: J.-P. Aumasson et al., "BLAKE2: simpler, smaller, fast as MD5", 2013.
void blake2b_compress_avx2(uint64_t* state, const uint8_t* block, uint64_t counted, bool last) {
  const Row low = load_row(state);
  const Row high = load_row(state + 4);
  const Row flags = _mm256_setr_epi64x(static_cast<int64_t>(counted), 0, last ? -1 : 0, 0);
  Rows v{low, high, load_row(kBlake2bInitial),
         _mm256_xor_si256(load_row(kBlake2bInitial + 4), flags)};
  mix_rounds(v, block, std::make_index_sequence<12>());
  auto* out = reinterpret_cast<__m256i*>(state);
  _mm256_storeu_si256(out, _mm256_xor_si256(low, _mm256_xor_si256(v.a, v.c)));
  _mm256_storeu_si256(out + 1, _mm256_xor_si256(high, _mm256_xor_si256(v.b, v.d)));
  _mm256_zeroupper();
}

}  // namespace inlay::isa
