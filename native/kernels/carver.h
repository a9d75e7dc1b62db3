// Hands out aligned pieces of one block of scratch memory. From null it only counts.
#pragma once

#include <cstddef>
#include <cstdint>

namespace inlay::kernels {

class Carver {
 public:
  explicit Carver(std::byte* memory) : memory_(memory) {}
  template <typename T>
  T* take(int64_t count) {
    std::byte* piece = memory_ == nullptr ? nullptr : memory_ + taken_;
    taken_ += (count * static_cast<int64_t>(sizeof(T)) + 63) / 64 * 64;
    return reinterpret_cast<T*>(piece);
  }
  int64_t taken() const { return taken_; }  // bytes

 private:
  std::byte* memory_;
  int64_t taken_ = 0;
};

}  // namespace inlay::kernels
