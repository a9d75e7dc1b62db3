#include "blake2b.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

namespace inlay {
namespace {

constexpr std::size_t kBlock = 128;

constexpr std::array<uint64_t, 8> kInitial = {
    0x6a09e667f3bcc908, 0xbb67ae8584caa73b, 0x3c6ef372fe94f82b, 0xa54ff53a5f1d36f1,
    0x510e527fade682d1, 0x9b05688c2b3e6c1f, 0x1f83d9abfb41bd6b, 0x5be0cd19137e2179};

// Message word order of each round; rounds 10 and 11 repeat 0 and 1.
constexpr uint8_t kSigma[10][16] = {{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
                                    {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
                                    {11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4},
                                    {7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
                                    {9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13},
                                    {2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
                                    {12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11},
                                    {13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
                                    {6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5},
                                    {10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0}};

using State = std::array<uint64_t, 8>;

void mix(std::array<uint64_t, 16>& v, int a, int b, int c, int d, uint64_t x, uint64_t y) {
  const auto at = [&v](int i) -> uint64_t& { return v[static_cast<std::size_t>(i)]; };
  at(a) += at(b) + x;
  at(d) = std::rotr(at(d) ^ at(a), 32);
  at(c) += at(d);
  at(b) = std::rotr(at(b) ^ at(c), 24);
  at(a) += at(b) + y;
  at(d) = std::rotr(at(d) ^ at(a), 16);
  at(c) += at(d);
  at(b) = std::rotr(at(b) ^ at(c), 63);
}

// `counted` is the number of message bytes up to and including this block (below 2^64 here).
void compress(State& h, const uint8_t* block, uint64_t counted, bool last) {
  std::array<uint64_t, 16> m;
  for (std::size_t i = 0; i < 16; ++i) {
    m[i] = 0;
    for (std::size_t byte = 0; byte < 8; ++byte)
      m[i] |= static_cast<uint64_t>(block[8 * i + byte]) << (8 * byte);
  }
  std::array<uint64_t, 16> v;
  std::copy(h.begin(), h.end(), v.begin());
  std::copy(kInitial.begin(), kInitial.end(), v.begin() + 8);
  v[12] ^= counted;
  if (last) v[14] = ~v[14];
  for (int round = 0; round < 12; ++round) {
    const uint8_t* s = kSigma[round % 10];
    mix(v, 0, 4, 8, 12, m[s[0]], m[s[1]]);
    mix(v, 1, 5, 9, 13, m[s[2]], m[s[3]]);
    mix(v, 2, 6, 10, 14, m[s[4]], m[s[5]]);
    mix(v, 3, 7, 11, 15, m[s[6]], m[s[7]]);
    mix(v, 0, 5, 10, 15, m[s[8]], m[s[9]]);
    mix(v, 1, 6, 11, 12, m[s[10]], m[s[11]]);
    mix(v, 2, 7, 8, 13, m[s[12]], m[s[13]]);
    mix(v, 3, 4, 9, 14, m[s[14]], m[s[15]]);
  }
  for (std::size_t i = 0; i < 8; ++i) h[i] ^= v[i] ^ v[i + 8];
}

}  // namespace

void blake2b(std::span<const uint8_t> message, std::span<const uint8_t> key,
             std::span<uint8_t> digest) {
  State h = kInitial;
  h[0] ^= 0x01010000u ^ (key.size() << 8) ^ digest.size();
  std::array<uint8_t, kBlock> block{};
  uint64_t counted = 0;
  if (!key.empty()) {
    std::copy(key.begin(), key.end(), block.begin());
    counted = kBlock;
    compress(h, block.data(), counted, message.empty());
  }
  // The last block, full or not, carries the final flag; only an unkeyed empty message has a block
  // without any byte.
  std::size_t done = 0;
  while (message.size() - done > kBlock) {
    counted += kBlock;
    compress(h, message.data() + done, counted, false);
    done += kBlock;
  }
  if (!message.empty() || key.empty()) {
    const std::size_t rest = message.size() - done;
    block.fill(0);
    std::copy_n(message.begin() + static_cast<std::ptrdiff_t>(done), rest, block.begin());
    counted += rest;
    compress(h, block.data(), counted, true);
  }
  for (std::size_t i = 0; i < digest.size(); ++i)
    digest[i] = static_cast<uint8_t>(h[i / 8] >> (8 * (i % 8)));
}

}  // namespace inlay
