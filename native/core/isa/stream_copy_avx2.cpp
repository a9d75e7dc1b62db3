#include <immintrin.h>

#include "stream_copies.h"
#include "stream_copy.inl.h"

namespace inlay::isa {

namespace {

struct Avx2 {
  using Vector = __m256i;
  static Vector load(const Vector* from) { return _mm256_loadu_si256(from); }
  static void stream(Vector* to, Vector vector) { _mm256_stream_si256(to, vector); }
};

template <std::size_t kLanes>
void copy(std::byte* to, const std::byte* from, std::size_t bytes) {
  stream_lines<Avx2, kLanes>(to, from, bytes);
  _mm_sfence();
  _mm256_zeroupper();
}

}  // namespace

void stream_copy_avx2(std::byte* to, const std::byte* from, std::size_t bytes) {
  copy<1>(to, from, bytes);
}

void stream_copy_avx2_lanes(std::byte* to, const std::byte* from, std::size_t bytes) {
  copy<kStreamLanes>(to, from, bytes);
}

}  // namespace inlay::isa
