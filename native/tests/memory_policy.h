// What the OS says about the node of a page.
#pragma once

#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>

// Policy of the page at `address`; -1 where the system does not tell.
inline int policy_of(const void* address, unsigned long& nodes) {
  int mode = -1;
  std::array<unsigned long, 16> mask{};
  if (syscall(SYS_get_mempolicy, &mode, mask.data(), mask.size() * 64, address, MPOL_F_ADDR) != 0)
    return -1;
  nodes = mask[0];
  return mode;
}

// Containers often forbid these calls.
inline bool policies_can_be_set() {
  constexpr std::size_t kBytes = 4096;
  void* page = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  unsigned long nodes = 0;
  const bool can = page != MAP_FAILED && policy_of(page, nodes) == MPOL_DEFAULT &&
                   syscall(SYS_mbind, page, kBytes, MPOL_DEFAULT, nullptr, 0, 0) == 0;
  if (page != MAP_FAILED) munmap(page, kBytes);
  return can;
}
