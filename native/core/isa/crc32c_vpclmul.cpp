#include "crc32c_vpclmul.h"

#include <immintrin.h>

#include "crc32c_sse42.h"

namespace inlay::isa {

namespace {

constexpr std::size_t kLineBytes = 64;
constexpr std::size_t kVectors = 4;
constexpr std::size_t kBlock = kVectors * sizeof(__m256i);
// Memory is asked for this far ahead.
constexpr std::size_t kAheadBytes = 2048;

// x^bits modulo the polynomial, the highest power in the highest bit of a word's upper half.
constexpr uint64_t power(std::size_t bits) {
  uint32_t value = 0x80000000;
  for (; bits > 0; --bits) value = (value >> 1) ^ ((value & 1) * 0x82f63b78);
  return uint64_t{value} << 32;
}

// A lane of 16 bytes goes past a block: its halves are that far, and 8 bytes more, from their new
// place. A product of reflected factors stands one bit further.
constexpr uint64_t kLower = power(8 * kBlock + 64 - 1);
constexpr uint64_t kUpper = power(8 * kBlock - 1);

__m256i past_block(__m256i sum, __m256i factors) {
  return _mm256_xor_si256(_mm256_clmulepi64_epi128(sum, factors, 0x00),
                          _mm256_clmulepi64_epi128(sum, factors, 0x11));
}

}  // namespace

// Each line takes a third of the instructions that it takes by words, so that more lines are under
// way from memory at a time. Each vector is read once: the CRC is of what was copied also when
// somebody changes the source meanwhile.
//
// Source: V. Gopal et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ
// Instruction", Intel, 2009: folding. What is left of it has the CRC of all before it.
uint32_t stream_crc32c_vpclmul(std::byte* to, const std::byte* from, std::size_t size,
                               uint32_t crc) {
  std::size_t head = (0 - reinterpret_cast<std::uintptr_t>(to)) % kLineBytes;
  if (head > size) head = size;
  crc = copy_crc32c_sse42(to, from, head, crc);
  to += head;
  from += head;
  size -= head;
  if (size >= kBlock) {
    const __m256i factors =
        _mm256_setr_epi64x(static_cast<int64_t>(kLower), static_cast<int64_t>(kUpper),
                           static_cast<int64_t>(kLower), static_cast<int64_t>(kUpper));
    // The CRC of what came before is as good as four bytes of the message.
    __m256i sums[kVectors] = {_mm256_setzero_si256(), _mm256_setzero_si256(),
                              _mm256_setzero_si256(), _mm256_setzero_si256()};
    __m256i before = _mm256_setr_epi32(static_cast<int32_t>(crc), 0, 0, 0, 0, 0, 0, 0);
    for (; size >= kBlock; to += kBlock, from += kBlock, size -= kBlock) {
      // Also past the end, where it does nothing.
      const auto ahead = reinterpret_cast<std::uintptr_t>(from) + kAheadBytes;
      for (std::size_t line = 0; line < kBlock; line += kLineBytes)
        _mm_prefetch(reinterpret_cast<const char*>(ahead + line), _MM_HINT_T0);
#pragma GCC unroll 4
      for (std::size_t i = 0; i < kVectors; ++i) {
        const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from) + i);
        _mm256_stream_si256(reinterpret_cast<__m256i*>(to) + i, bytes);
        sums[i] = _mm256_xor_si256(past_block(sums[i], factors), bytes);
      }
      sums[0] = _mm256_xor_si256(sums[0], before);
      before = _mm256_setzero_si256();
    }
    alignas(kLineBytes) std::byte left[kBlock];
    for (std::size_t i = 0; i < kVectors; ++i)
      _mm256_store_si256(reinterpret_cast<__m256i*>(left) + i, sums[i]);
    crc = crc32c_sse42(left, kBlock, 0);
  }
  _mm_sfence();
  _mm256_zeroupper();
  return copy_crc32c_sse42(to, from, size, crc);
}

}  // namespace inlay::isa
