#include "aligned_buffer.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>

namespace inlay::kernels {
namespace {

constexpr std::size_t kAlignment = 64;
constexpr std::size_t kHugePage = std::size_t{2} << 20;
// Below two huge pages the rounding would waste more than the TLB gains.
constexpr std::size_t kMapped = 2 * kHugePage;

std::size_t round_up(std::size_t size, std::size_t step) { return (size + step - 1) / step * step; }

}  // namespace

AlignedBuffer::AlignedBuffer(std::size_t size_bytes) : size_(size_bytes) {
  if (size_bytes == 0) return;
  if (size_bytes < kMapped) {
    void* memory = std::aligned_alloc(kAlignment, round_up(size_bytes, kAlignment));
    if (memory == nullptr) throw std::bad_alloc();
    std::memset(memory, 0, size_bytes);
    data_ = static_cast<std::byte*>(memory);
    return;
  }
  // Anonymous pages are zero already. One huge page more is mapped, then what lies outside the
  // aligned range is given back.
  const std::size_t mapped = round_up(size_bytes, kHugePage);
  void* memory = mmap(nullptr, mapped + kHugePage, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  std::byte* begin = static_cast<std::byte*>(memory);
  const std::size_t offset = round_up(reinterpret_cast<std::uintptr_t>(begin), kHugePage) -
                             reinterpret_cast<std::uintptr_t>(begin);
  if (offset > 0) munmap(begin, offset);
  if (offset < kHugePage) munmap(begin + offset + mapped, kHugePage - offset);
  data_ = begin + offset;
  // A hint: without transparent huge pages the buffer works all the same.
  (void)madvise(data_, mapped, MADV_HUGEPAGE);
}

AlignedBuffer::~AlignedBuffer() {
  if (size_ < kMapped)
    std::free(data_);
  else
    munmap(data_, round_up(size_, kHugePage));
}

}  // namespace inlay::kernels
