// The 16-byte name of a block as two words, and where its bytes lie in a chain.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace inlay::cluster {

struct Digest {
  uint64_t low = 0;
  uint64_t high = 0;

  bool operator==(const Digest&) const = default;
};

// Digests of 16 bytes each, joined; borrowed. A rest shorter than one is left out.
class Chain {
 public:
  explicit Chain(std::span<const uint8_t> bytes) : bytes_(bytes) {}

  std::size_t size() const { return bytes_.size() / sizeof(Digest); }
  Digest operator[](std::size_t i) const {
    Digest digest;
    std::memcpy(&digest, bytes_.data() + i * sizeof(Digest), sizeof(Digest));
    return digest;
  }
  Chain first(std::size_t count) const { return Chain(bytes_.first(count * sizeof(Digest))); }
  Chain from(std::size_t i) const { return Chain(bytes_.subspan(i * sizeof(Digest))); }

 private:
  std::span<const uint8_t> bytes_;
};

}  // namespace inlay::cluster
