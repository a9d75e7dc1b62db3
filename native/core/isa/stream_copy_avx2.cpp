#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "stream_copies.h"

namespace inlay::isa {

void stream_copy_avx2(std::byte* to, const std::byte* from, std::size_t bytes) {
  constexpr std::size_t kLine = 64;
  constexpr std::size_t kStep = 2 * kLine;
  std::size_t head = (0 - reinterpret_cast<std::uintptr_t>(to)) % kLine;
  if (head > bytes) head = bytes;
  std::memcpy(to, from, head);
  to += head;
  from += head;
  bytes -= head;
  for (; bytes >= kStep; to += kStep, from += kStep, bytes -= kStep) {
    const auto* source = reinterpret_cast<const __m256i*>(from);
    auto* target = reinterpret_cast<__m256i*>(to);
    const __m256i a = _mm256_loadu_si256(source);
    const __m256i b = _mm256_loadu_si256(source + 1);
    const __m256i c = _mm256_loadu_si256(source + 2);
    const __m256i d = _mm256_loadu_si256(source + 3);
    _mm256_stream_si256(target, a);
    _mm256_stream_si256(target + 1, b);
    _mm256_stream_si256(target + 2, c);
    _mm256_stream_si256(target + 3, d);
  }
  _mm_sfence();
  _mm256_zeroupper();
  std::memcpy(to, from, bytes);
}

}  // namespace inlay::isa
