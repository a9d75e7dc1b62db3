// Owned memory for packed weights and scratch: 64-byte aligned, zeroed, in huge pages when large,
// on a NUMA node when asked.
#pragma once

#include <cstddef>
#include <utility>

namespace inlay::kernels {

class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  // Zeroed. Memory is committed as it is touched. Throws std::bad_alloc. `node` is the OS's number
  // of a NUMA node whose memory is taken as long as it lasts (Session::memory_node() tells it), -1
  // for that of whoever touches first. What is smaller than a page, or may not be bound, lies
  // anywhere.
  explicit AlignedBuffer(std::size_t size_bytes, int node = -1);
  AlignedBuffer(AlignedBuffer&& other) noexcept { *this = std::move(other); }
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(mapped_, other.mapped_);
    std::swap(node_, other.node_);
    return *this;
  }
  AlignedBuffer(const AlignedBuffer&) = delete;
  AlignedBuffer& operator=(const AlignedBuffer&) = delete;
  ~AlignedBuffer();

  // As `node` for the bytes [first, end) alone, which nobody has touched yet. Both ends are rounded
  // down to a page of the buffer, but for its own end, so adjoining parts leave none out.
  void prefer_node(std::size_t first, std::size_t end, int node);

  std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }

  // Makes room for size_bytes on the same node; contents are lost when it has to grow.
  void reserve(std::size_t size_bytes) {
    if (size_bytes > size_) *this = AlignedBuffer(size_bytes + size_bytes / 4, node_);
  }

 private:
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  std::size_t mapped_ = 0;  // bytes to unmap; 0 for memory of the allocator
  int node_ = -1;
};

}  // namespace inlay::kernels
