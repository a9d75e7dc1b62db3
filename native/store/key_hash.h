// A keyed hash of keys: clients choose keys, and none of them can choose what collides.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace inlay::store {

// SipHash-1-3 (Aumasson and Bernstein, 2012), in the byte order of the machine.
class KeyHash {
 public:
  KeyHash(uint64_t seed0, uint64_t seed1) : seed_{seed0, seed1} {}

  uint64_t operator()(std::string_view key) const {
    std::array<uint64_t, 4> v{seed_[0] ^ 0x736f6d6570736575, seed_[1] ^ 0x646f72616e646f6d,
                              seed_[0] ^ 0x6c7967656e657261, seed_[1] ^ 0x7465646279746573};
    const char* at = key.data();
    std::size_t left = key.size();
    for (; left >= 8; at += 8, left -= 8) {
      uint64_t word;
      std::memcpy(&word, at, 8);
      absorb(v, word);
    }
    uint64_t tail = 0;
    if (left > 0) std::memcpy(&tail, at, left);
    absorb(v, tail);
    absorb(v, key.size());
    v[2] ^= 0xff;
    for (int i = 0; i < 3; ++i) round(v);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
  }

 private:
  static void round(std::array<uint64_t, 4>& v) {
    v[0] += v[1];
    v[2] += v[3];
    v[1] = std::rotl(v[1], 13) ^ v[0];
    v[3] = std::rotl(v[3], 16) ^ v[2];
    v[0] = std::rotl(v[0], 32);
    v[2] += v[1];
    v[0] += v[3];
    v[1] = std::rotl(v[1], 17) ^ v[2];
    v[3] = std::rotl(v[3], 21) ^ v[0];
    v[2] = std::rotl(v[2], 32);
  }
  static void absorb(std::array<uint64_t, 4>& v, uint64_t word) {
    v[3] ^= word;
    round(v);
    v[0] ^= word;
  }

  std::array<uint64_t, 2> seed_;
};

}  // namespace inlay::store
