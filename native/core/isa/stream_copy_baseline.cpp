#include <cstdint>
#include <cstring>

#include "stream_copies.h"

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace inlay::isa {

#if defined(__x86_64__)

void stream_copy_baseline(std::byte* to, const std::byte* from, std::size_t bytes) {
  constexpr std::size_t kLine = 64;
  std::size_t head = (0 - reinterpret_cast<std::uintptr_t>(to)) % kLine;
  if (head > bytes) head = bytes;
  std::memcpy(to, from, head);
  to += head;
  from += head;
  bytes -= head;
  for (; bytes >= kLine; to += kLine, from += kLine, bytes -= kLine) {
    const auto* source = reinterpret_cast<const __m128i*>(from);
    auto* target = reinterpret_cast<__m128i*>(to);
    const __m128i a = _mm_loadu_si128(source);
    const __m128i b = _mm_loadu_si128(source + 1);
    const __m128i c = _mm_loadu_si128(source + 2);
    const __m128i d = _mm_loadu_si128(source + 3);
    _mm_stream_si128(target, a);
    _mm_stream_si128(target + 1, b);
    _mm_stream_si128(target + 2, c);
    _mm_stream_si128(target + 3, d);
  }
  _mm_sfence();
  std::memcpy(to, from, bytes);
}

#else

// The C library of other processors decides by itself when to go past the caches.
void stream_copy_baseline(std::byte* to, const std::byte* from, std::size_t bytes) {
  std::memcpy(to, from, bytes);
}

#endif

}  // namespace inlay::isa
