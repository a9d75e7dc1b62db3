// BLAKE2b against the vectors of RFC 7693, and the chain against its definition.
#include "../core/block_hash.h"

#include <array>
#include <numeric>
#include <string>
#include <vector>

#include "../core/blake2b.h"
#include "check.h"

namespace {

std::string hex(std::span<const uint8_t> bytes) {
  std::string text;
  for (const uint8_t byte : bytes) {
    text += "0123456789abcdef"[byte >> 4];
    text += "0123456789abcdef"[byte & 15];
  }
  return text;
}

void blake2b(inlay::Blake2bCompress compress, std::span<const uint8_t> message,
             std::span<const uint8_t> key, std::span<uint8_t> digest) {
  inlay::KeyedBlake2b(key, digest.size(), compress)(message, digest);
}

// RFC 7693, appendix A.
void test_abc(inlay::Blake2bCompress compress) {
  const std::array<uint8_t, 3> message = {'a', 'b', 'c'};
  std::array<uint8_t, 64> digest;
  blake2b(compress, message, {}, digest);
  CHECK(hex(digest) ==
        "ba80a53f981c4d0d6a2797b69f12f6e94c212f14685ac4b74b12bb6fdbffa2d1"
        "7d87c5392aab792dc252d5de4533cc9518d38aa8dbf1925ab92386edd4009923");
}

// RFC 7693, appendix E: all lengths around the block size, with and without key.
void test_self_test(inlay::Blake2bCompress compress) {
  const auto sequence = [](std::size_t length, uint32_t seed) {
    std::vector<uint8_t> bytes(length);
    uint32_t a = 0xdead4bad * seed, b = 1;
    for (uint8_t& byte : bytes) {
      const uint32_t t = a + b;
      a = b;
      b = t;
      byte = static_cast<uint8_t>(t >> 24);
    }
    return bytes;
  };
  std::vector<uint8_t> all;
  for (const std::size_t digest_size : {20, 32, 48, 64})
    for (const std::size_t length : {0, 3, 128, 129, 255, 1024}) {
      const std::vector<uint8_t> message = sequence(length, static_cast<uint32_t>(length));
      const std::vector<uint8_t> key = sequence(digest_size, static_cast<uint32_t>(digest_size));
      std::vector<uint8_t> digest(digest_size);
      blake2b(compress, message, {}, digest);
      all.insert(all.end(), digest.begin(), digest.end());
      blake2b(compress, message, key, digest);
      all.insert(all.end(), digest.begin(), digest.end());
    }
  std::array<uint8_t, 32> digest;
  blake2b(compress, all, {}, digest);
  CHECK(hex(digest) == "c23a7800d98123bd10f506c61e29da5603d763b8bbad2e737f5e765a7bccd475");
}

void test_chain() {
  std::vector<uint32_t> ids(50);
  std::iota(ids.begin(), ids.end(), 0xfffffff0u);
  const std::array<uint8_t, 3> key = {1, 2, 3};
  std::array<uint8_t, 16> parent{};
  const std::vector<uint8_t> all = inlay::block_hash_chain(key, parent, ids, 16);
  CHECK(all.size() == 3 * 16);
  for (std::size_t block = 0; block < 3; ++block) {
    const std::vector<uint8_t> one =
        inlay::block_hash_chain(key, parent, std::span(ids).subspan(16 * block, 16), 16);
    CHECK(std::equal(one.begin(), one.end(), all.begin() + static_cast<long>(16 * block)));
    std::copy(one.begin(), one.end(), parent.begin());
  }
  CHECK(inlay::block_hash_chain(key, parent, std::span(ids).first(15), 16).empty());
}

}  // namespace

int main() {
  for (const inlay::Blake2bCompress compress :
       {inlay::blake2b_by_words(), inlay::blake2b_by_vectors()})
    if (compress != nullptr) {
      test_abc(compress);
      test_self_test(compress);
    }
  test_chain();
}
