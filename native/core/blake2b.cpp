#include "blake2b.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <utility>

#include "blake2b_tables.h"

#if defined(__x86_64__)
#include "isa/blake2b_avx2.h"
#endif

namespace inlay {
namespace {

constexpr std::size_t kBlock = 128;

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
  constexpr const uint8_t* s = kBlake2bOrder[kRound % 10];
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

void compress_by_words(uint64_t* h, const uint8_t* block, uint64_t counted, bool last) {
  Words m;
  std::memcpy(m.data(), block, kBlock);
  for (uint64_t& word : m) word = little_endian(word);
  Words v;
  std::copy_n(h, 8, v.begin());
  std::copy_n(kBlake2bInitial, 8, v.begin() + 8);
  v[12] ^= counted;
  if (last) v[14] = ~v[14];
  mix_rounds(v, m, std::make_index_sequence<12>());
  for (std::size_t i = 0; i < 8; ++i) h[i] ^= v[i] ^ v[i + 8];
}

}  // namespace

Blake2bCompress blake2b_by_words() { return compress_by_words; }

Blake2bCompress blake2b_by_vectors() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) return isa::blake2b_compress_avx2;
#endif
  return nullptr;
}

Blake2bCompress blake2b_compress() {
  const Blake2bCompress vectors = blake2b_by_vectors();
  return vectors != nullptr ? vectors : blake2b_by_words();
}

KeyedBlake2b::KeyedBlake2b(std::span<const uint8_t> key, std::size_t digest_bytes,
                           Blake2bCompress compress)
    : compress_(compress), start_(std::to_array(kBlake2bInitial)) {
  start_[0] ^= 0x01010000u ^ (key.size() << 8) ^ digest_bytes;
  empty_ = start_;
  std::array<uint8_t, kBlock> block{};
  std::copy(key.begin(), key.end(), block.begin());
  if (key.empty()) {
    compress_(empty_.data(), block.data(), 0, true);
    return;
  }
  counted_ = kBlock;
  compress_(empty_.data(), block.data(), counted_, true);
  compress_(start_.data(), block.data(), counted_, false);
}

void KeyedBlake2b::operator()(std::span<const uint8_t> message, std::span<uint8_t> digest) const {
  State h = message.empty() ? empty_ : start_;
  uint64_t counted = counted_;
  while (message.size() > kBlock) {
    counted += kBlock;
    compress_(h.data(), message.data(), counted, false);
    message = message.subspan(kBlock);
  }
  // The last block, full or not, carries the final flag.
  if (!message.empty()) {
    std::array<uint8_t, kBlock> block{};
    std::copy(message.begin(), message.end(), block.begin());
    compress_(h.data(), block.data(), counted + message.size(), true);
  }
  for (uint64_t& word : h) word = little_endian(word);
  std::memcpy(digest.data(), h.data(), digest.size());
}

void blake2b(std::span<const uint8_t> message, std::span<const uint8_t> key,
             std::span<uint8_t> digest) {
  KeyedBlake2b(key, digest.size())(message, digest);
}

}  // namespace inlay
