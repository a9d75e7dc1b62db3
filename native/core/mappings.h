// What of the address space this process may touch.
#pragma once

#include <cstdint>

namespace inlay {

struct Protection {
  bool readable;
  bool writable;
};

// Of all bytes in [address, address + length), as the kernel lists them now; nothing keeps them so.
// Both true where the kernel shows no list (/proc/self/maps).
Protection protection_of(uintptr_t address, uint64_t length);

}  // namespace inlay
