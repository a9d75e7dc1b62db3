// CRC32C against the vectors of RFC 3720, B.4, whole and in parts.
#include "../core/crc32c.h"

#include <array>
#include <cstring>
#include <string_view>

#include "check.h"

int main() {
  using inlay::crc32c;
  std::array<std::byte, 32> bytes{};
  CHECK(crc32c(bytes) == 0x8a9136aa);
  bytes.fill(std::byte{0xff});
  CHECK(crc32c(bytes) == 0x62a8ab43);
  for (std::size_t i = 0; i < 32; ++i) bytes[i] = static_cast<std::byte>(i);
  CHECK(crc32c(bytes) == 0x46dd794e);
  for (std::size_t cut = 0; cut <= 32; ++cut) {
    const std::span<const std::byte> all(bytes);
    CHECK(crc32c(all.subspan(cut), crc32c(all.first(cut))) == 0x46dd794e);
  }
  constexpr std::string_view kDigits = "123456789";
  CHECK(crc32c(std::as_bytes(std::span(kDigits))) == 0xe3069283);
}
