// BLAKE2b as RFC 7693 defines it, for messages that fit into memory.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace inlay {

// Takes a block of 128 bytes into a state of eight words. `counted` is the number of message bytes
// up to and including this block (below 2^64 here).
using Blake2bCompress = void (*)(uint64_t* state, const uint8_t* block, uint64_t counted,
                                 bool last);

// The variants, which tests compare. Null: this processor has no instructions for it.
Blake2bCompress blake2b_by_words();
Blake2bCompress blake2b_by_vectors();
// The quickest.
Blake2bCompress blake2b_compress();

// Hashes under one key. The key fills a block of its own before each message, which is compressed
// here once: a message of up to 128 bytes then costs one compression instead of two.
class KeyedBlake2b {
 public:
  // 0 to 64 bytes of key, digests of 1 to 64 bytes.
  KeyedBlake2b(std::span<const uint8_t> key, std::size_t digest_bytes,
               Blake2bCompress compress = blake2b_compress());

  // `digest` has `digest_bytes`; it may be a part of `message`.
  void operator()(std::span<const uint8_t> message, std::span<uint8_t> digest) const;

 private:
  using State = std::array<uint64_t, 8>;
  Blake2bCompress compress_;
  State empty_;  // of the message without any byte
  State start_;  // before the first byte of others
  uint64_t counted_ = 0;
};

// Fills `digest` (1 to 64 bytes) with the keyed (0 to 64 bytes of key) hash of `message`.
void blake2b(std::span<const uint8_t> message, std::span<const uint8_t> key,
             std::span<uint8_t> digest);

}  // namespace inlay
