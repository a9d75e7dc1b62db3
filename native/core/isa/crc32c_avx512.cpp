#include "crc32c_fold.inl.h"
#include "crc32c_vpclmul.h"

namespace inlay::isa {

namespace {

struct Avx512 {
  using Vector = __m512i;
  static Vector load(const std::byte* from) { return _mm512_loadu_si512(from); }
  static void store(std::byte* to, Vector vector) { _mm512_store_si512(to, vector); }
  static void stream(std::byte* to, Vector vector) {
    _mm512_stream_si512(reinterpret_cast<Vector*>(to), vector);
  }
  static Vector every_lane(uint64_t lower, uint64_t upper) {
    const auto low = static_cast<int64_t>(lower);
    const auto high = static_cast<int64_t>(upper);
    return _mm512_setr_epi64(low, high, low, high, low, high, low, high);
  }
  static Vector first_word(uint32_t word) {
    return _mm512_zextsi128_si512(_mm_cvtsi32_si128(static_cast<int32_t>(word)));
  }
  static Vector combined(Vector a, Vector b) { return _mm512_xor_si512(a, b); }
  static Vector past(Vector sum, Vector factors, Vector bytes) {
    constexpr int kXorOfThree = 0x96;
    return _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(sum, factors, 0x00),
                                     _mm512_clmulepi64_epi128(sum, factors, 0x11), bytes,
                                     kXorOfThree);
  }
};

}  // namespace

uint32_t stream_crc32c_avx512(std::byte* to, const std::byte* from, std::size_t size,
                              uint32_t crc) {
  return stream_crc32c<Avx512>(to, from, size, crc);
}

}  // namespace inlay::isa
