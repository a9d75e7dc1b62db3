// The loop of copies past the caches that sum up, which each instruction set compiles with its own
// vectors.
//
// Each line takes a third of the instructions that it takes by words, so that more lines are under
// way from memory at a time. Each vector is read once: the CRC is of what was copied also when
// somebody changes the source meanwhile.
//
// Source: V. Gopal et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ
// Instruction", Intel, 2009: folding. What is left of it has the CRC of all before it.
#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "crc32c_sse42.h"

namespace {

constexpr std::size_t kLineBytes = 64;
// Memory is asked for this far ahead.
constexpr std::size_t kAheadBytes = 2048;

// x^bits modulo the polynomial, the highest power in the highest bit of a word's upper half.
constexpr uint64_t power(std::size_t bits) {
  uint32_t value = 0x80000000;
  for (; bits > 0; --bits) value = (value >> 1) ^ ((value & 1) * 0x82f63b78);
  return uint64_t{value} << 32;
}

// Isa: a Vector; load() of one from anywhere, store() and stream() past the caches to an aligned
// place; every_lane() of 16 bytes alike, first_word() before zeros; combined(), the exclusive or;
// past(), what a sum is when its lanes have gone a block further by two factors, and bytes came.
template <typename Isa>
uint32_t stream_crc32c(std::byte* to, const std::byte* from, std::size_t size, uint32_t crc) {
  using Vector = typename Isa::Vector;
  constexpr std::size_t kVectors = 4;
  constexpr std::size_t kBlock = kVectors * sizeof(Vector);
  // A lane's halves are a block, and 8 bytes more, from their new place. A product of reflected
  // factors stands one bit further.
  constexpr uint64_t kLower = power(8 * kBlock + 64 - 1);
  constexpr uint64_t kUpper = power(8 * kBlock - 1);
  std::size_t head = (0 - reinterpret_cast<std::uintptr_t>(to)) % kLineBytes;
  if (head > size) head = size;
  crc = inlay::isa::copy_crc32c_sse42(to, from, head, crc);
  to += head;
  from += head;
  size -= head;
  if (size >= kBlock) {
    const Vector factors = Isa::every_lane(kLower, kUpper);
    // The CRC of what came before is as good as four bytes of the message.
    Vector before = Isa::first_word(crc);
    Vector sums[kVectors] = {Vector{}, Vector{}, Vector{}, Vector{}};
    for (; size >= kBlock; to += kBlock, from += kBlock, size -= kBlock) {
      // Also past the end, where it does nothing.
      const auto ahead = reinterpret_cast<std::uintptr_t>(from) + kAheadBytes;
      for (std::size_t line = 0; line < kBlock; line += kLineBytes)
        _mm_prefetch(reinterpret_cast<const char*>(ahead + line), _MM_HINT_T0);
#pragma GCC unroll 4
      for (std::size_t i = 0; i < kVectors; ++i) {
        const Vector bytes = Isa::load(from + i * sizeof(Vector));
        Isa::stream(to + i * sizeof(Vector), bytes);
        sums[i] = Isa::past(sums[i], factors, bytes);
      }
      sums[0] = Isa::combined(sums[0], before);
      before = Vector{};
    }
    alignas(kLineBytes) std::byte left[kBlock];
    for (std::size_t i = 0; i < kVectors; ++i) Isa::store(left + i * sizeof(Vector), sums[i]);
    crc = inlay::isa::crc32c_sse42(left, kBlock, 0);
  }
  _mm_sfence();
  _mm256_zeroupper();
  return inlay::isa::copy_crc32c_sse42(to, from, size, crc);
}

}  // namespace
