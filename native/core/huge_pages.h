// Large memory that is about to be filled once.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>

namespace inlay {

// Asks for huge pages where whole ones lie in fresh memory: its first use then takes one fault of
// the system for 2 MiB, not 512. A hint: what is refused costs nothing.
inline void prefer_huge_pages(void* memory, std::size_t bytes) {
  constexpr std::uintptr_t kHugePage = std::uintptr_t{2} << 20;
  const auto begin = (reinterpret_cast<std::uintptr_t>(memory) + kHugePage - 1) & ~(kHugePage - 1);
  const auto end = (reinterpret_cast<std::uintptr_t>(memory) + bytes) & ~(kHugePage - 1);
  if (begin < end) (void)madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
}

}  // namespace inlay
