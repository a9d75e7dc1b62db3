#include "stream_copies.h"

#if defined(__x86_64__)

#include <emmintrin.h>

#include "stream_copy.inl.h"

namespace inlay::isa {

namespace {

struct Sse2 {
  using Vector = __m128i;
  static Vector load(const Vector* from) { return _mm_loadu_si128(from); }
  static void stream(Vector* to, Vector vector) { _mm_stream_si128(to, vector); }
};

}  // namespace

void stream_copy_baseline(std::byte* to, const std::byte* from, std::size_t bytes) {
  stream_lines<Sse2, 1>(to, from, bytes);
  _mm_sfence();
}

}  // namespace inlay::isa

#else

#include <cstring>

namespace inlay::isa {

// The C library of other processors decides by itself when to go past the caches.
void stream_copy_baseline(std::byte* to, const std::byte* from, std::size_t bytes) {
  std::memcpy(to, from, bytes);
}

}  // namespace inlay::isa

#endif
