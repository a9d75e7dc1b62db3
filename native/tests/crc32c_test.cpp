// CRC32C against the vectors of RFC 3720, B.4, whole and in parts; its variants against each other.
#include "../core/crc32c.h"

#include <array>
#include <cstdio>
#include <random>
#include <string_view>
#include <vector>

#include "check.h"

namespace {

void check_vectors(inlay::Crc32c crc32c) {
  std::array<std::byte, 32> bytes{};
  CHECK(crc32c(bytes, 0) == 0x8a9136aa);
  bytes.fill(std::byte{0xff});
  CHECK(crc32c(bytes, 0) == 0x62a8ab43);
  for (std::size_t i = 0; i < 32; ++i) bytes[i] = static_cast<std::byte>(i);
  CHECK(crc32c(bytes, 0) == 0x46dd794e);
  for (std::size_t cut = 0; cut <= 32; ++cut) {
    const std::span<const std::byte> all(bytes);
    CHECK(crc32c(all.subspan(cut), crc32c(all.first(cut), 0)) == 0x46dd794e);
  }
  constexpr std::string_view kDigits = "123456789";
  CHECK(crc32c(std::as_bytes(std::span(kDigits)), 0) == 0xe3069283);
}

// Around the sizes of lanes and blocks, from any address.
void compare(inlay::Crc32c one, inlay::Crc32c other) {
  std::mt19937_64 random(7);
  std::vector<std::byte> bytes(40000);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  const std::span<const std::byte> all(bytes);
  for (std::size_t size : {0, 1, 7, 8, 9, 1360, 4079, 4080, 4081, 4096, 8159, 8160, 8167, 12243})
    for (std::size_t from = 0; from < 9; ++from) {
      const auto before = static_cast<uint32_t>(random());
      CHECK(one(all.subspan(from, size), before) == other(all.subspan(from, size), before));
    }
  for (int i = 0; i < 2000; ++i) {
    const std::size_t from = random() % 1000;
    const auto part = all.subspan(from, random() % (bytes.size() - from));
    CHECK(one(part, 0) == other(part, 0));
  }
}

}  // namespace

int main() {
  check_vectors(inlay::crc32c);
  check_vectors(inlay::crc32c_by_table());
  if (const inlay::Crc32c fast = inlay::crc32c_by_instruction()) {
    check_vectors(fast);
    compare(fast, inlay::crc32c_by_table());
  } else {
    std::puts("this processor has no instruction for it: the table alone is tested");
  }
}
