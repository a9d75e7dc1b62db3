#include "crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include "isa/crc32c_sse42.h"
#endif

namespace inlay {

namespace {

// kTables[k][b]: what byte b contributes when k more bytes follow it. Four bytes at a time.
using Tables = std::array<std::array<uint32_t, 256>, 4>;

constexpr Tables make_tables() {
  constexpr uint32_t kPolynomial = 0x82f63b78;  // reflected
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

uint32_t by_table(std::span<const std::byte> bytes, uint32_t before) {
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

#if defined(__x86_64__)
uint32_t by_instruction(std::span<const std::byte> bytes, uint32_t before) {
  return ~isa::crc32c_sse42(bytes.data(), bytes.size(), ~before);
}
#endif

Crc32c best() {
  const Crc32c fast = crc32c_by_instruction();
  return fast != nullptr ? fast : crc32c_by_table();
}

}  // namespace

Crc32c crc32c_by_table() { return by_table; }

Crc32c crc32c_by_instruction() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul")) return by_instruction;
#endif
  return nullptr;
}

uint32_t crc32c(std::span<const std::byte> bytes, uint32_t before) {
  static const Crc32c chosen = best();
  return chosen(bytes, before);
}

}  // namespace inlay
