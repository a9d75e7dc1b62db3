// Which inputs of LoRA matrices are dropped: a 32-bit hash of the feature under a key that is a
// hash of seed, stream and token, so that a draw depends on its place alone
// (inlay/kernels/reference/dropout.py). Stream 0 is the input of gate and up, 1 + e that of the
// down matrix of expert e.
#pragma once

#include <cstdint>

namespace inlay::kernels {

class Dropout {
 public:
  Dropout(double rate, uint64_t seed)
      : rate_(rate),
        seed_(seed),
        threshold_(static_cast<uint32_t>(rate * 4294967296.0)),
        scale_(static_cast<float>(1.0 / (1.0 - rate))) {}

  bool drops() const { return rate_ > 0; }

  // Multiplies values of features [first, first + count) of a token by 0 or 1 / (1 - rate).
  void apply(uint64_t stream, int64_t token, int64_t first, int64_t count, float* values) const {
    const uint64_t key = mix(mix(seed_ + kGolden * (stream + 1)) + static_cast<uint64_t>(token));
    const auto low = static_cast<uint32_t>(key), high = static_cast<uint32_t>(key >> 32);
    for (int64_t i = 0; i < count; ++i)
      values[i] *= hash(static_cast<uint32_t>(first + i), low, high) >= threshold_ ? scale_ : 0.0f;
  }

 private:
  static constexpr uint64_t kGolden = 0x9e3779b97f4a7c15u;

  static uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
  }
  static uint32_t hash(uint32_t feature, uint32_t low, uint32_t high) {
    uint32_t h = feature * 0x9e3779b1u ^ low;
    h ^= h >> 16;
    h = h * 0x7feb352du + high;
    h ^= h >> 15;
    h *= 0x846ca68bu;
    return h ^ (h >> 16);
  }

  double rate_;
  uint64_t seed_;
  uint32_t threshold_;
  float scale_;
};

}  // namespace inlay::kernels
