#include "aligned_buffer.h"

#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <climits>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>

namespace inlay::kernels {
namespace {

constexpr std::size_t kAlignment = 64;
constexpr std::size_t kPage = 4096;
constexpr std::size_t kHugePage = std::size_t{2} << 20;
// Below two huge pages the rounding would waste more than the TLB gains.
constexpr std::size_t kHuge = 2 * kHugePage;

std::size_t round_up(std::size_t size, std::size_t step) { return (size + step - 1) / step * step; }

// `size` bytes of zeroed pages, aligned to `alignment`.
std::byte* map(std::size_t size, std::size_t alignment) {
  // More is mapped than needed, then what lies outside the aligned range is given back.
  const std::size_t spare = alignment - kPage;
  void* memory = mmap(nullptr, size + spare, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  std::byte* begin = static_cast<std::byte*>(memory);
  const auto address = reinterpret_cast<std::uintptr_t>(begin);
  const std::size_t offset = round_up(address, alignment) - address;
  if (offset > 0) munmap(begin, offset);
  if (offset < spare) munmap(begin + offset + size, spare - offset);
  return begin + offset;
}

// Asks for pages of this node when they are touched first. Preferred, not forced: a full node must
// not end the process. Containers often forbid the call, which is no error either: then the pages
// come from the node of the thread that touches them.
void bind(std::byte* data, std::size_t size, int node) {
  constexpr std::size_t kBits = sizeof(unsigned long) * CHAR_BIT;
  std::array<unsigned long, 1024 / kBits> mask{};
  const auto bit = static_cast<std::size_t>(node);
  if (bit / kBits >= mask.size()) return;
  mask[bit / kBits] = 1ul << bit % kBits;
  (void)syscall(SYS_mbind, data, size, MPOL_PREFERRED, mask.data(), mask.size() * kBits, 0);
}

}  // namespace

AlignedBuffer::AlignedBuffer(std::size_t size_bytes, int node) : size_(size_bytes), node_(node) {
  if (size_bytes == 0) return;
  const bool huge = size_bytes >= kHuge;
  if (!huge && (node < 0 || size_bytes < kPage)) {
    void* memory = std::aligned_alloc(kAlignment, round_up(size_bytes, kAlignment));
    if (memory == nullptr) throw std::bad_alloc();
    std::memset(memory, 0, size_bytes);
    data_ = static_cast<std::byte*>(memory);
    return;
  }
  const std::size_t page = huge ? kHugePage : kPage;
  mapped_ = round_up(size_bytes, page);
  data_ = map(mapped_, page);
  if (node >= 0) bind(data_, mapped_, node);
  // A hint: without transparent huge pages the buffer works all the same.
  if (huge) (void)madvise(data_, mapped_, MADV_HUGEPAGE);
}

void AlignedBuffer::prefer_node(std::size_t first, std::size_t end, int node) {
  if (mapped_ == 0 || node < 0) return;
  const std::size_t page = size_ >= kHuge ? kHugePage : kPage;
  first = first / page * page;
  end = end == size_ ? mapped_ : end / page * page;
  if (first < end) bind(data_ + first, end - first, node);
}

AlignedBuffer::~AlignedBuffer() {
  if (mapped_ == 0)
    std::free(data_);
  else
    munmap(data_, mapped_);
}

}  // namespace inlay::kernels
