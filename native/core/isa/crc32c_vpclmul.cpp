#include "crc32c_vpclmul.h"

#include <immintrin.h>

#include "crc32c_sse42.h"
#include "stream_lanes.h"

namespace inlay::isa {

namespace {

constexpr std::size_t kLineBytes = 64;
constexpr std::size_t kVectors = 4;
constexpr std::size_t kBlock = kVectors * sizeof(__m256i);
// Memory is asked for this far ahead.
constexpr std::size_t kAheadBytes = 2048;

// x^bits modulo the polynomial, the highest power in the highest bit.
constexpr uint32_t power(std::size_t bits) {
  uint32_t value = 0x80000000;
  for (; bits > 0; --bits) value = (value >> 1) ^ ((value & 1) * 0x82f63b78);
  return value;
}

// A lane of 16 bytes of a vector goes past a block: its halves are that far, and 8 bytes more, from
// their new place. They stand in the upper half of a word, and a product of reflected factors one
// bit further.
constexpr uint64_t kLower = uint64_t{power(8 * kBlock + 64 - 1)} << 32;
constexpr uint64_t kUpper = uint64_t{power(8 * kBlock - 1)} << 32;
// As crc32c_times_sse42() takes it: that multiplies with x^32, and the product stands one further.
constexpr uint32_t kPastLane = power(8 * kStreamLaneBytes - 33);

__m256i past_block(__m256i sum) {
  const __m256i factors =
      _mm256_setr_epi64x(static_cast<int64_t>(kLower), static_cast<int64_t>(kUpper),
                         static_cast<int64_t>(kLower), static_cast<int64_t>(kUpper));
  return _mm256_xor_si256(_mm256_clmulepi64_epi128(sum, factors, 0x00),
                          _mm256_clmulepi64_epi128(sum, factors, 0x11));
}

// A block that has the CRC of all that a lane has taken.
struct Sums {
  __m256i of[kVectors];

  uint32_t crc() const {
    alignas(kLineBytes) std::byte block[kBlock];
    for (std::size_t i = 0; i < kVectors; ++i)
      _mm256_store_si256(reinterpret_cast<__m256i*>(block) + i, of[i]);
    return crc32c_sse42(block, kBlock, 0);
  }
};

// Whole blocks. `before` goes with the first one's first bytes.
void take_run(Sums& sums, std::byte* to, const std::byte* from, std::size_t size, __m256i before) {
  Sums now = sums;
  for (; size > 0; to += kBlock, from += kBlock, size -= kBlock) {
    // Also past the end, where it does nothing.
    const auto ahead = reinterpret_cast<std::uintptr_t>(from) + kAheadBytes;
    for (std::size_t line = 0; line < kBlock; line += kLineBytes)
      _mm_prefetch(reinterpret_cast<const char*>(ahead + line), _MM_HINT_T0);
#pragma GCC unroll 4
    for (std::size_t i = 0; i < kVectors; ++i) {
      const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from) + i);
      _mm256_stream_si256(reinterpret_cast<__m256i*>(to) + i, bytes);
      now.of[i] = _mm256_xor_si256(past_block(now.of[i]), bytes);
    }
    now.of[0] = _mm256_xor_si256(now.of[0], before);
    before = _mm256_setzero_si256();
  }
  sums = now;
}

// So many lanes of `size` bytes, one behind the other. Returns the CRC, going on from `crc`.
template <std::size_t kCount>
uint32_t take_lanes(std::byte* to, const std::byte* from, std::size_t size, std::size_t run,
                    uint32_t crc) {
  Sums sums[kCount]{};
  // The CRC of what came before is as good as four bytes of the message.
  __m256i before = _mm256_setr_epi32(static_cast<int32_t>(crc), 0, 0, 0, 0, 0, 0, 0);
  for (std::size_t done = 0; done < size; done += run)
    for (std::size_t lane = 0; lane < kCount; ++lane) {
      take_run(sums[lane], to + lane * size + done, from + lane * size + done, run, before);
      before = _mm256_setzero_si256();
    }
  crc = 0;
  for (const Sums& lane : sums) crc = crc32c_times_sse42(crc, kPastLane) ^ lane.crc();
  return crc;
}

// So many lanes at a time, then one.
template <std::size_t kCount>
uint32_t stream_crc32c(std::byte* to, const std::byte* from, std::size_t size, uint32_t crc) {
  std::size_t head = (0 - reinterpret_cast<std::uintptr_t>(to)) % kLineBytes;
  if (head > size) head = size;
  crc = copy_crc32c_sse42(to, from, head, crc);
  to += head;
  from += head;
  size -= head;
  const auto advance = [&](std::size_t bytes) {
    to += bytes;
    from += bytes;
    size -= bytes;
  };
  if constexpr (kCount > 1)
    for (; size >= kCount * kStreamLaneBytes; advance(kCount * kStreamLaneBytes))
      crc = take_lanes<kCount>(to, from, kStreamLaneBytes, kStreamRunBytes, crc);
  if (const std::size_t blocks = size - size % kBlock; blocks > 0) {
    crc = take_lanes<1>(to, from, blocks, blocks, crc);
    advance(blocks);
  }
  _mm_sfence();
  _mm256_zeroupper();
  return copy_crc32c_sse42(to, from, size, crc);
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
  return stream_crc32c<1>(to, from, size, crc);
}

uint32_t stream_crc32c_vpclmul_lanes(std::byte* to, const std::byte* from, std::size_t size,
                                     uint32_t crc) {
  return stream_crc32c<kStreamLanes>(to, from, size, crc);
}

}  // namespace inlay::isa
