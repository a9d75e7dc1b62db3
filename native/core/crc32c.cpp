#include "crc32c.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "stream_copy.h"

#if defined(__x86_64__)
#include "isa/crc32c_sse42.h"
#include "isa/crc32c_vpclmul.h"
#endif

namespace inlay {

namespace {

constexpr uint32_t kPolynomial = 0x82f63b78;  // reflected: the highest power in the lowest bit
constexpr uint32_t kOne = 0x80000000;

// kTables[k][b]: what byte b contributes when k more bytes follow it. Four bytes at a time.
using Tables = std::array<std::array<uint32_t, 256>, 4>;

constexpr Tables make_tables() {
  Tables tables{};
  for (uint32_t b = 0; b < 256; ++b) {
    uint32_t crc = b;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) * kPolynomial);
    tables[0][b] = crc;
  }
  for (std::size_t k = 1; k < tables.size(); ++k)
    for (std::size_t b = 0; b < 256; ++b) {
      const uint32_t crc = tables[k - 1][b];
      tables[k][b] = (crc >> 8) ^ tables[0][crc & 0xff];
    }
  return tables;
}

constexpr Tables kTables = make_tables();

// Modulo the polynomial.
constexpr uint32_t times(uint32_t a, uint32_t b) {
  uint32_t product = 0;
  for (uint32_t bit = kOne; bit != 0; bit >>= 1) {
    product ^= b & (0 - static_cast<uint32_t>((a & bit) != 0));
    b = (b >> 1) ^ ((b & 1) * kPolynomial);
  }
  return product;
}

// Powers of x repeat after 2^31 - 1: the polynomial is x + 1 times a primitive one of degree 31.
constexpr uint64_t kPeriod = (uint64_t{1} << 31) - 1;
constexpr std::size_t kBits = 31;

constexpr uint32_t power(uint64_t exponent) {
  uint32_t value = kOne;
  uint32_t square = kOne >> 1;  // x
  for (; exponent > 0; exponent >>= 1) {
    if ((exponent & 1) != 0) value = times(value, square);
    square = times(square, square);
  }
  return value;
}

// kPast[k]: x^(8 * 2^k - less). Entry k serves k + 31, too.
constexpr std::array<uint32_t, kBits> powers_past(uint64_t less) {
  std::array<uint32_t, kBits> powers{};
  for (std::size_t k = 0; k < kBits; ++k)
    powers[k] = power(((uint64_t{8} << k) + kPeriod - less) % kPeriod);
  return powers;
}
constexpr std::array<uint32_t, kBits> kPast = powers_past(0);

template <typename Times>
uint32_t combine(uint32_t first, uint32_t second, uint64_t second_bytes, Times&& times_power) {
  for (uint64_t left = second_bytes; left != 0; left &= left - 1)
    first = times_power(first, static_cast<std::size_t>(std::countr_zero(left)) % kBits);
  return first ^ second;
}

uint32_t sum_by_table(std::span<const std::byte> bytes, uint32_t before) {
  uint32_t crc = ~before;
  const std::byte* at = bytes.data();
  std::size_t left = bytes.size();
  for (; left >= 4; at += 4, left -= 4) {
    uint32_t word;
    std::memcpy(&word, at, 4);
    crc ^= word;
    crc = kTables[3][crc & 0xff] ^ kTables[2][(crc >> 8) & 0xff] ^ kTables[1][(crc >> 16) & 0xff] ^
          kTables[0][crc >> 24];
  }
  for (; left > 0; ++at, --left)
    crc = (crc >> 8) ^ kTables[0][(crc ^ static_cast<uint32_t>(*at)) & 0xff];
  return ~crc;
}

// Through a copy of our own, so that `from` is read once.
uint32_t copy_by_table(std::byte* to, const std::byte* from, std::size_t bytes, bool streaming,
                       uint32_t before) {
  std::array<std::byte, 4096> piece;
  for (std::size_t done = 0; done < bytes;) {
    const std::size_t step = std::min(piece.size(), bytes - done);
    std::memcpy(piece.data(), from + done, step);
    before = sum_by_table(std::span(piece).first(step), before);
    copy_bytes(to + done, piece.data(), step, streaming);
    done += step;
  }
  return before;
}

uint32_t combine_by_table(uint32_t first, uint32_t second, uint64_t second_bytes) {
  return combine(first, second, second_bytes,
                 [](uint32_t crc, std::size_t k) { return times(crc, kPast[k]); });
}

constexpr Crc32c kByTable{sum_by_table, copy_by_table, combine_by_table};

#if defined(__x86_64__)
uint32_t sum_by_instruction(std::span<const std::byte> bytes, uint32_t before) {
  return ~isa::crc32c_sse42(bytes.data(), bytes.size(), ~before);
}

uint32_t copy_by_instruction(std::byte* to, const std::byte* from, std::size_t bytes,
                             bool streaming, uint32_t before) {
  const auto copy = streaming ? isa::stream_crc32c_sse42 : isa::copy_crc32c_sse42;
  return ~copy(to, from, bytes, ~before);
}

uint32_t copy_by_vectors(std::byte* to, const std::byte* from, std::size_t bytes, bool streaming,
                         uint32_t before) {
  const auto copy = streaming ? isa::stream_crc32c_vpclmul : isa::copy_crc32c_sse42;
  return ~copy(to, from, bytes, ~before);
}

uint32_t copy_by_lanes(std::byte* to, const std::byte* from, std::size_t bytes, bool streaming,
                       uint32_t before) {
  const auto copy = streaming ? isa::stream_crc32c_vpclmul_lanes : isa::copy_crc32c_sse42;
  return ~copy(to, from, bytes, ~before);
}

uint32_t combine_by_instruction(uint32_t first, uint32_t second, uint64_t second_bytes) {
  static constexpr std::array<uint32_t, kBits> kFactors = powers_past(33);
  return combine(first, second, second_bytes, [](uint32_t crc, std::size_t k) {
    return isa::crc32c_times_sse42(crc, kFactors[k]);
  });
}

constexpr Crc32c kByInstruction{sum_by_instruction, copy_by_instruction, combine_by_instruction};
constexpr Crc32c kByVectors{sum_by_instruction, copy_by_vectors, combine_by_instruction};
constexpr Crc32c kByLanes{sum_by_instruction, copy_by_lanes, combine_by_instruction};
#endif

const Crc32c& chosen() {
  static const Crc32c* const best = [] {
    const Crc32c* const vectors = copies_in_lanes() ? crc32c_by_lanes() : crc32c_by_vectors();
    if (vectors != nullptr) return vectors;
    return crc32c_by_instruction() != nullptr ? crc32c_by_instruction() : crc32c_by_table();
  }();
  return *best;
}

}  // namespace

const Crc32c* crc32c_by_table() { return &kByTable; }

const Crc32c* crc32c_by_instruction() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul")) return &kByInstruction;
#endif
  return nullptr;
}

const Crc32c* crc32c_by_vectors() {
#if defined(__x86_64__)
  if (crc32c_by_instruction() != nullptr && __builtin_cpu_supports("avx2") &&
      __builtin_cpu_supports("vpclmulqdq"))
    return &kByVectors;
#endif
  return nullptr;
}

const Crc32c* crc32c_by_lanes() {
#if defined(__x86_64__)
  if (crc32c_by_vectors() != nullptr) return &kByLanes;
#endif
  return nullptr;
}

uint32_t crc32c(std::span<const std::byte> bytes, uint32_t before) {
  return chosen().sum(bytes, before);
}

uint32_t copy_crc32c(std::byte* to, const std::byte* from, std::size_t bytes, bool streaming,
                     uint32_t before) {
  return chosen().copy(to, from, bytes, streaming, before);
}

uint32_t crc32c_combine(uint32_t first, uint32_t second, uint64_t second_bytes) {
  return chosen().combine(first, second, second_bytes);
}

}  // namespace inlay
