#include "mappings.h"

#include <cinttypes>
#include <cstdio>
#include <memory>

namespace inlay {

Protection protection_of(uintptr_t address, uint64_t length) {
  const std::unique_ptr<FILE, int (*)(FILE*)> maps(std::fopen("/proc/self/maps", "re"),
                                                   std::fclose);
  if (maps == nullptr) return {true, true};
  Protection all{true, true};
  uint64_t next = address;  // the first byte that no line was about yet
  char line[512];           // a longer line goes on in the next read, which starts with no range
  while (std::fgets(line, sizeof(line), maps.get()) != nullptr) {
    uint64_t begin = 0;
    uint64_t end = 0;
    char mode[5];
    if (std::sscanf(line, "%" SCNx64 "-%" SCNx64 " %4s", &begin, &end, mode) != 3) continue;
    if (end <= next) continue;
    if (begin > next) break;
    all.readable &= mode[0] == 'r';
    all.writable &= mode[1] == 'w';
    next = end;
    if (next - address >= length) return all;
  }
  return {false, false};
}

}  // namespace inlay
