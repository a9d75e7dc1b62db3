// CRC32C against the vectors of RFC 3720, B.4, whole and in parts; its variants against each other:
// sums, copies at every alignment, combinations.
#include "../core/crc32c.h"

#include <array>
#include <cstdio>
#include <cstring>
#include <random>
#include <string_view>
#include <vector>

#include "check.h"

namespace {

using inlay::Crc32c;

std::vector<std::byte> noise(std::size_t size) {
  std::mt19937_64 random(7);
  std::vector<std::byte> bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

void check_vectors(const Crc32c& crc) {
  std::array<std::byte, 32> bytes{};
  CHECK(crc.sum(bytes, 0) == 0x8a9136aa);
  bytes.fill(std::byte{0xff});
  CHECK(crc.sum(bytes, 0) == 0x62a8ab43);
  for (std::size_t i = 0; i < 32; ++i) bytes[i] = static_cast<std::byte>(i);
  CHECK(crc.sum(bytes, 0) == 0x46dd794e);
  for (std::size_t cut = 0; cut <= 32; ++cut) {
    const std::span<const std::byte> all(bytes);
    const uint32_t first = crc.sum(all.first(cut), 0);
    CHECK(crc.sum(all.subspan(cut), first) == 0x46dd794e);
    CHECK(crc.combine(first, crc.sum(all.subspan(cut), 0), 32 - cut) == 0x46dd794e);
  }
  constexpr std::string_view kDigits = "123456789";
  CHECK(crc.sum(std::as_bytes(std::span(kDigits)), 0) == 0xe3069283);
}

// Around the sizes of lanes and blocks, from any address.
void compare_sums(const Crc32c& one, const Crc32c& other) {
  std::mt19937_64 random(8);
  const std::vector<std::byte> bytes = noise(40000);
  const std::span<const std::byte> all(bytes);
  for (std::size_t size = 0; size < 2400; ++size)
    for (std::size_t from : {0U, 1U, 3U, 8U, 63U}) {
      const auto before = static_cast<uint32_t>(random());
      CHECK(one.sum(all.subspan(from, size), before) == other.sum(all.subspan(from, size), before));
    }
  for (int i = 0; i < 2000; ++i) {
    const std::size_t from = random() % 1000;
    const auto part = all.subspan(from, random() % (bytes.size() - from));
    CHECK(one.sum(part, 0) == other.sum(part, 0));
  }
}

void check_copies(const Crc32c& crc) {
  constexpr std::byte kGuard{0xa5};
  constexpr std::size_t kRoom = 64;
  std::mt19937_64 random(9);
  const std::vector<std::byte> bytes = noise(300000);
  std::vector<std::byte> to(bytes.size() + 4 * kRoom);
  const auto check = [&](std::size_t size, std::size_t to_shift, std::size_t from_shift) {
    const std::span<const std::byte> from = std::span(bytes).subspan(from_shift, size);
    for (const bool streaming : {false, true}) {
      const auto before = static_cast<uint32_t>(random());
      const std::size_t begin = kRoom + to_shift;
      std::memset(to.data(), static_cast<int>(kGuard), begin + size + kRoom);
      CHECK(crc.copy(to.data() + begin, from.data(), size, streaming, before) ==
            inlay::crc32c_by_table()->sum(from, before));
      CHECK(std::equal(from.begin(), from.end(), to.data() + begin));
      for (std::size_t i = 0; i < begin; ++i) CHECK(to[i] == kGuard);
      for (std::size_t i = begin + size; i < begin + size + kRoom; ++i) CHECK(to[i] == kGuard);
    }
  };
  for (std::size_t to_shift = 0; to_shift < 64; ++to_shift)
    for (std::size_t from_shift = 0; from_shift < 64; ++from_shift)
      check(random() % 300, to_shift, from_shift);
  for (std::size_t size = 0; size < 2200; ++size) check(size, random() % 64, random() % 64);
  for (int i = 0; i < 200; ++i) check(random() % 19000, random() % 64, random() % 64);
  for (int i = 0; i < 20; ++i) check(random() % 299000, random() % 64, random() % 64);
  for (std::size_t lanes : {64U << 10, 128U << 10})
    for (std::size_t beside : {0U, 1U, 63U, 64U, 130U}) {
      check(lanes - beside, random() % 64, random() % 64);
      check(lanes + beside, 0, 0);
    }
}

void check_combinations(const Crc32c& crc) {
  std::mt19937_64 random(10);
  const std::vector<std::byte> bytes = noise(30000);
  const std::span<const std::byte> all(bytes);
  for (int i = 0; i < 500; ++i) {
    // In any order, each part past what follows it.
    uint32_t whole = 0;
    std::size_t end = random() % bytes.size();
    const uint32_t expected = crc.sum(all.first(end), 0);
    for (std::size_t after = 0; end > 0;) {
      const std::size_t size = 1 + random() % end;
      whole ^= crc.combine(crc.sum(all.subspan(end - size, size), 0), 0, after);
      after += size;
      end -= size;
    }
    CHECK(whole == expected);
  }
  // Lengths that nobody sums: so many zeros one after the other are as good as all at once.
  for (int i = 0; i < 1000; ++i) {
    const auto first = static_cast<uint32_t>(random());
    const uint64_t a = random() >> (1 + random() % 63);
    const uint64_t b = random() >> (1 + random() % 63);
    CHECK(crc.combine(crc.combine(first, 0, a), 0, b) == crc.combine(first, 0, a + b));
    CHECK(crc.combine(first, 0, a) == inlay::crc32c_by_table()->combine(first, 0, a));
  }
  // 6 GiB of zeros, by doubling.
  uint32_t zeros = crc.sum(std::vector<std::byte>(1 << 20), 0);
  const uint32_t of_three = crc.combine(crc.combine(zeros, zeros, 1 << 20), zeros, 1 << 20);
  uint32_t doubled = of_three;
  for (uint64_t size = 3 << 20; size < uint64_t{6} << 30; size *= 2)
    doubled = crc.combine(doubled, doubled, size);
  uint32_t counted = 0;
  for (int i = 0; i < 6 << 10; ++i) counted = crc.combine(counted, zeros, 1 << 20);
  CHECK(doubled == counted);
}

void check_variant(const Crc32c& crc) {
  check_vectors(crc);
  check_copies(crc);
  check_combinations(crc);
}

}  // namespace

int main() {
  check_variant({inlay::crc32c, inlay::copy_crc32c, inlay::crc32c_combine});
  check_variant(*inlay::crc32c_by_table());
  if (const Crc32c* fast = inlay::crc32c_by_instruction()) {
    check_variant(*fast);
    compare_sums(*fast, *inlay::crc32c_by_table());
  } else {
    std::puts("this processor has no instruction for it: the table alone is tested");
  }
  if (const Crc32c* vectors = inlay::crc32c_by_vectors()) {
    check_variant(*vectors);
    check_variant(*inlay::crc32c_by_lanes());
  } else {
    std::puts("this processor multiplies no vectors: those variants are not tested");
  }
}
