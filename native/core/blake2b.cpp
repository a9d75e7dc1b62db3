#include "blake2b.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <utility>

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
using Words = std::array<uint64_t, 16>;

template <int a, int b, int c, int d>
[[gnu::always_inline]] inline void mix(Words& v, uint64_t x, uint64_t y) {
  v[a] += v[b] + x;
  v[d] = std::rotr(v[d] ^ v[a], 32);
  v[c] += v[d];
  v[b] = std::rotr(v[b] ^ v[c], 24);
  v[a] += v[b] + y;
  v[d] = std::rotr(v[d] ^ v[a], 16);
  v[c] += v[d];
  v[b] = std::rotr(v[b] ^ v[c], 63);
}

// The order of words is a constant in each round: looked up at run time it doubles the cost.
template <std::size_t kRound>
[[gnu::always_inline]] inline void mix_round(Words& v, const Words& m) {
  constexpr const uint8_t* s = kSigma[kRound % 10];
  mix<0, 4, 8, 12>(v, m[s[0]], m[s[1]]);
  mix<1, 5, 9, 13>(v, m[s[2]], m[s[3]]);
  mix<2, 6, 10, 14>(v, m[s[4]], m[s[5]]);
  mix<3, 7, 11, 15>(v, m[s[6]], m[s[7]]);
  mix<0, 5, 10, 15>(v, m[s[8]], m[s[9]]);
  mix<1, 6, 11, 12>(v, m[s[10]], m[s[11]]);
  mix<2, 7, 8, 13>(v, m[s[12]], m[s[13]]);
  mix<3, 4, 9, 14>(v, m[s[14]], m[s[15]]);
}

template <std::size_t... kRounds>
[[gnu::always_inline]] inline void mix_rounds(Words& v, const Words& m,
                                              std::index_sequence<kRounds...>) {
  (mix_round<kRounds>(v, m), ...);
}

uint64_t little_endian(uint64_t word) {
  if constexpr (std::endian::native == std::endian::little) return word;
  return __builtin_bswap64(word);
}

// `counted` is the number of message bytes up to and including this block (below 2^64 here).
void compress(State& h, const uint8_t* block, uint64_t counted, bool last) {
  Words m;
  std::memcpy(m.data(), block, kBlock);
  for (uint64_t& word : m) word = little_endian(word);
  Words v;
  std::copy(h.begin(), h.end(), v.begin());
  std::copy(kInitial.begin(), kInitial.end(), v.begin() + 8);
  v[12] ^= counted;
  if (last) v[14] = ~v[14];
  mix_rounds(v, m, std::make_index_sequence<12>());
  for (std::size_t i = 0; i < 8; ++i) h[i] ^= v[i] ^ v[i + 8];
}

}  // namespace

KeyedBlake2b::KeyedBlake2b(std::span<const uint8_t> key, std::size_t digest_bytes)
    : start_(kInitial) {
  start_[0] ^= 0x01010000u ^ (key.size() << 8) ^ digest_bytes;
  empty_ = start_;
  std::array<uint8_t, kBlock> block{};
  std::copy(key.begin(), key.end(), block.begin());
  if (key.empty()) {
    compress(empty_, block.data(), 0, true);
    return;
  }
  counted_ = kBlock;
  compress(empty_, block.data(), counted_, true);
  compress(start_, block.data(), counted_, false);
}

void KeyedBlake2b::operator()(std::span<const uint8_t> message, std::span<uint8_t> digest) const {
  State h = message.empty() ? empty_ : start_;
  uint64_t counted = counted_;
  while (message.size() > kBlock) {
    counted += kBlock;
    compress(h, message.data(), counted, false);
    message = message.subspan(kBlock);
  }
  // The last block, full or not, carries the final flag.
  if (!message.empty()) {
    std::array<uint8_t, kBlock> block{};
    std::copy(message.begin(), message.end(), block.begin());
    compress(h, block.data(), counted + message.size(), true);
  }
  for (uint64_t& word : h) word = little_endian(word);
  std::memcpy(digest.data(), h.data(), digest.size());
}

void blake2b(std::span<const uint8_t> message, std::span<const uint8_t> key,
             std::span<uint8_t> digest) {
  KeyedBlake2b(key, digest.size())(message, digest);
}

}  // namespace inlay
