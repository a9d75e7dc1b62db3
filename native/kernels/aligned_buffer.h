// Owned memory for packed weights and scratch: 64-byte aligned, zeroed, in huge pages when large.
#pragma once

#include <cstddef>
#include <span>
#include <utility>

namespace inlay::kernels {

class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  // Zeroed. Memory is committed as it is touched. Throws std::bad_alloc.
  explicit AlignedBuffer(std::size_t size_bytes);
  AlignedBuffer(AlignedBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  AlignedBuffer(const AlignedBuffer&) = delete;
  AlignedBuffer& operator=(const AlignedBuffer&) = delete;
  ~AlignedBuffer();

  std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }

  // Makes room for size_bytes; contents are lost when it has to grow.
  void reserve(std::size_t size_bytes) {
    if (size_bytes > size_) *this = AlignedBuffer(size_bytes + size_bytes / 4);
  }

 private:
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace inlay::kernels
