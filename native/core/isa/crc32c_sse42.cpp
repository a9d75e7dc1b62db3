#include "crc32c_sse42.h"

#include <immintrin.h>

#include <cstring>

namespace inlay::isa {

namespace {

constexpr std::size_t kLineBytes = 64;
// Memory is asked for this far ahead; without it, half the speed from memory.
constexpr std::size_t kAheadBytes = 2048;

// x^bits modulo the polynomial, the highest power in the lowest bit.
constexpr uint32_t power(std::size_t bits) {
  uint32_t value = 0x80000000;
  for (; bits > 0; --bits) value = (value >> 1) ^ ((value & 1) * 0x82f63b78);
  return value;
}

// What the CRC is multiplied with to go past so many bytes. The reduction below multiplies with
// x^32, and a product of reflected factors stands one bit further.
constexpr uint32_t past(std::size_t bytes) { return power(8 * bytes - 33); }

uint64_t product(uint64_t crc, uint32_t factor) {
  const __m128i a = _mm_cvtsi64_si128(static_cast<int64_t>(crc));
  const __m128i b = _mm_cvtsi64_si128(static_cast<int64_t>(factor));
  return static_cast<uint64_t>(_mm_cvtsi128_si64(_mm_clmulepi64_si128(a, b, 0)));
}

// Where the bytes go that were read. Each word is read once: the CRC is of what was copied also
// when somebody changes the source meanwhile.
struct Nowhere {
  static void put(std::byte*, uint64_t) {}
  static void put(std::byte*, std::byte) {}
  static void fence() {}
};
struct Cached {
  static void put(std::byte* to, uint64_t word) { std::memcpy(to, &word, 8); }
  static void put(std::byte* to, std::byte byte) { *to = byte; }
  static void fence() {}
};
struct Streamed {
  static void put(std::byte* to, uint64_t word) {
    _mm_stream_si64(reinterpret_cast<long long*>(to), static_cast<long long>(word));
  }
  static void put(std::byte* to, std::byte byte) { *to = byte; }
  static void fence() { _mm_sfence(); }
};

struct Moved {
  std::byte* to;
  const std::byte* from;
  std::size_t left;

  void advance(std::size_t bytes) {
    to += bytes;
    from += bytes;
    left -= bytes;
  }
};

template <typename Target>
uint64_t take_word(const Moved& at, std::size_t offset, uint64_t crc) {
  uint64_t word;
  std::memcpy(&word, at.from + offset, 8);
  Target::put(at.to + offset, word);
  return _mm_crc32_u64(crc, word);
}

// The instruction takes three cycles, and one begins in each: three lanes and more keep it busy.
// They lie close together, so that memory is still read as one stream. What goes past the caches
// does so a whole line after the other: each that is begun holds one of few buffers.
template <typename Target, int kLanes, std::size_t kLaneBytes, bool kByLine>
uint64_t take_blocks(Moved& at, uint64_t crc) {
  constexpr std::size_t kBlock = kLanes * kLaneBytes;
  constexpr std::size_t kRun = kByLine ? kLineBytes : 8;
  constexpr struct Factors {
    uint32_t of[kLanes]{};
    constexpr Factors() {
      for (int lane = 0; lane + 1 < kLanes; ++lane)
        of[lane] = past((kLanes - 1 - lane) * kLaneBytes);
    }
  } kFactors;
  while (at.left >= kBlock) {
    // Also past the end, where it does nothing.
    const auto ahead = reinterpret_cast<std::uintptr_t>(at.from) + kAheadBytes;
    for (std::size_t line = 0; line < kBlock; line += kLineBytes)
      _mm_prefetch(reinterpret_cast<const char*>(ahead + line), _MM_HINT_T0);
    uint64_t lanes[kLanes]{crc};
    for (std::size_t run = 0; run < kLaneBytes; run += kRun) {
#pragma GCC unroll 8
      for (int lane = 0; lane < kLanes; ++lane)
#pragma GCC unroll 8
        for (std::size_t word = 0; word < kRun; word += 8)
          lanes[lane] = take_word<Target>(at, lane * kLaneBytes + run + word, lanes[lane]);
    }
    uint64_t products = 0;
#pragma GCC unroll 8
    for (int lane = 0; lane + 1 < kLanes; ++lane)
      products ^= product(lanes[lane], kFactors.of[lane]);
    crc = lanes[kLanes - 1] ^ _mm_crc32_u64(0, products);
    at.advance(kBlock);
  }
  return crc;
}

template <typename Target>
uint64_t take_bytes(Moved& at, std::size_t count, uint64_t crc) {
  auto last = static_cast<uint32_t>(crc);
  for (std::size_t i = 0; i < count; ++i) {
    const std::byte byte = at.from[i];
    Target::put(at.to + i, byte);
    last = _mm_crc32_u8(last, static_cast<uint8_t>(byte));
  }
  at.advance(count);
  return last;
}

template <typename Target>
uint32_t take_rest(Moved& at, uint64_t crc) {
  crc = take_blocks<Target, 3, kLineBytes, true>(at, crc);
  for (; at.left >= 8; at.advance(8)) crc = take_word<Target>(at, 0, crc);
  crc = take_bytes<Target>(at, at.left, crc);
  Target::fence();
  return static_cast<uint32_t>(crc);
}

}  // namespace

// Source: V. Gopal et al., "Fast CRC Computation for iSCSI Polynomial Using CRC32 Instruction",
// Intel, 2011: lanes, joined by carry-less multiplication.
uint32_t crc32c_sse42(const std::byte* bytes, std::size_t size, uint32_t crc) {
  Moved at{nullptr, bytes, size};
  return take_rest<Nowhere>(at, take_blocks<Nowhere, 6, 128, false>(at, crc));
}

uint32_t copy_crc32c_sse42(std::byte* to, const std::byte* from, std::size_t size, uint32_t crc) {
  Moved at{to, from, size};
  return take_rest<Cached>(at, take_blocks<Cached, 3, 320, true>(at, crc));
}

uint32_t stream_crc32c_sse42(std::byte* to, const std::byte* from, std::size_t size, uint32_t crc) {
  Moved at{to, from, size};
  std::size_t head = (0 - reinterpret_cast<std::uintptr_t>(to)) % kLineBytes;
  if (head > size) head = size;
  const uint64_t after_head = take_bytes<Cached>(at, head, crc);
  return take_rest<Streamed>(at, take_blocks<Streamed, 3, 320, true>(at, after_head));
}

uint32_t crc32c_times_sse42(uint32_t crc, uint32_t factor) {
  return static_cast<uint32_t>(_mm_crc32_u64(0, product(crc, factor)));
}

}  // namespace inlay::isa
