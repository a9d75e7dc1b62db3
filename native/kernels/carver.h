// Hands out aligned pieces of one block of scratch memory.
#pragma once

#include <cstddef>
#include <cstdint>

namespace inlay::kernels {

class Carver {
 public:
  explicit Carver(std::byte* memory) : next_(memory) {}
  template <typename T>
  T* take(int64_t count) {
    T* piece = reinterpret_cast<T*>(next_);
    next_ += size<T>(count);
    return piece;
  }
  template <typename T>
  static int64_t size(int64_t count) {
    return (count * static_cast<int64_t>(sizeof(T)) + 63) / 64 * 64;
  }

 private:
  std::byte* next_;
};

}  // namespace inlay::kernels
