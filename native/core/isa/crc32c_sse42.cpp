#include "crc32c_sse42.h"

#include <immintrin.h>

#include <cstring>

namespace inlay::isa {

namespace {

// The instruction takes three cycles, and one begins in each: three lanes keep it busy. They lie
// close together, so that memory is still read as one stream.
constexpr std::size_t kLaneBytes = 1360;
constexpr std::size_t kBlockBytes = 3 * kLaneBytes;  // of 4 KiB, 16 bytes are left
// Memory is asked for this far ahead: 31 GB/s instead of 12.
constexpr std::size_t kAheadBytes = 8192;

// x^bits modulo the polynomial, the highest power in the lowest bit.
constexpr uint32_t power(std::size_t bits) {
  uint32_t value = 0x80000000;
  for (; bits > 0; --bits) value = (value >> 1) ^ ((value & 1) * 0x82f63b78);
  return value;
}

// What the CRC is multiplied with to go past so many bytes. The reduction below multiplies with
// x^32, and a product of reflected factors stands one bit further.
constexpr uint32_t past(std::size_t bytes) { return power(8 * bytes - 33); }

uint64_t word(const std::byte* at) {
  uint64_t value;
  std::memcpy(&value, at, 8);
  return value;
}

uint64_t product(uint64_t crc, uint32_t factor) {
  const __m128i a = _mm_cvtsi64_si128(static_cast<int64_t>(crc));
  const __m128i b = _mm_cvtsi64_si128(static_cast<int64_t>(factor));
  return static_cast<uint64_t>(_mm_cvtsi128_si64(_mm_clmulepi64_si128(a, b, 0)));
}

}  // namespace

// Source: V. Gopal et al., "Fast CRC Computation for iSCSI Polynomial Using CRC32 Instruction",
// Intel, 2011: lanes, joined by carry-less multiplication.
uint32_t crc32c_sse42(const std::byte* bytes, std::size_t size, uint32_t crc) {
  constexpr uint32_t kPastOne = past(kLaneBytes);
  constexpr uint32_t kPastTwo = past(2 * kLaneBytes);
  uint64_t first = crc;
  for (; size >= kBlockBytes; bytes += kBlockBytes, size -= kBlockBytes) {
    // Also past the end, where it does nothing.
    const auto ahead = reinterpret_cast<std::uintptr_t>(bytes) + kAheadBytes;
    for (std::size_t at = 0; at < kBlockBytes; at += 64)
      _mm_prefetch(reinterpret_cast<const char*>(ahead + at), _MM_HINT_T0);
    uint64_t second = 0;
    uint64_t third = 0;
    for (std::size_t at = 0; at < kLaneBytes; at += 8) {
      first = _mm_crc32_u64(first, word(bytes + at));
      second = _mm_crc32_u64(second, word(bytes + kLaneBytes + at));
      third = _mm_crc32_u64(third, word(bytes + 2 * kLaneBytes + at));
    }
    first = third ^ _mm_crc32_u64(0, product(first, kPastTwo) ^ product(second, kPastOne));
  }
  for (; size >= 8; bytes += 8, size -= 8) first = _mm_crc32_u64(first, word(bytes));
  auto last = static_cast<uint32_t>(first);
  for (; size > 0; ++bytes, --size) last = _mm_crc32_u8(last, static_cast<uint8_t>(*bytes));
  return last;
}

}  // namespace inlay::isa
