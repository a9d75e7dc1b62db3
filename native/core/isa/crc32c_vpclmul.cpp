#include "crc32c_vpclmul.h"

#include "crc32c_fold.inl.h"

namespace inlay::isa {

namespace {

struct Vpclmul {
  using Vector = __m256i;
  static Vector load(const std::byte* from) {
    return _mm256_loadu_si256(reinterpret_cast<const Vector*>(from));
  }
  static void store(std::byte* to, Vector vector) {
    _mm256_store_si256(reinterpret_cast<Vector*>(to), vector);
  }
  static void stream(std::byte* to, Vector vector) {
    _mm256_stream_si256(reinterpret_cast<Vector*>(to), vector);
  }
  static Vector every_lane(uint64_t lower, uint64_t upper) {
    const auto low = static_cast<int64_t>(lower);
    const auto high = static_cast<int64_t>(upper);
    return _mm256_setr_epi64x(low, high, low, high);
  }
  static Vector first_word(uint32_t word) {
    return _mm256_setr_epi32(static_cast<int32_t>(word), 0, 0, 0, 0, 0, 0, 0);
  }
  static Vector combined(Vector a, Vector b) { return _mm256_xor_si256(a, b); }
  static Vector past(Vector sum, Vector factors, Vector bytes) {
    return combined(combined(_mm256_clmulepi64_epi128(sum, factors, 0x00),
                             _mm256_clmulepi64_epi128(sum, factors, 0x11)),
                    bytes);
  }
};

}  // namespace

uint32_t stream_crc32c_vpclmul(std::byte* to, const std::byte* from, std::size_t size,
                               uint32_t crc) {
  return stream_crc32c<Vpclmul>(to, from, size, crc);
}

}  // namespace inlay::isa
