#include "cpu_features.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <cerrno>
#include <cstdint>
#include <cstring>

namespace inlay::kernels {

#if defined(__x86_64__)
namespace {

uint64_t read_xcr0() {
  uint32_t low = 0, high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (static_cast<uint64_t>(high) << 32) | low;
}

bool bit(uint32_t word, int index) { return ((word >> index) & 1u) != 0; }

// arch_prctl(2): which extended states Linux offers, and a request for one. glibc has no wrapper.
constexpr long kGetSupportedStates = 0x1021;
constexpr long kRequestState = 0x1023;
constexpr long kTileData = 18;

bool os_offers_tiles() {
  uint64_t states = 0;
  return syscall(SYS_arch_prctl, kGetSupportedStates, &states) == 0 &&
         (states >> kTileData & 1) != 0;
}

}  // namespace

CpuFeatures detect_cpu_features() {
  CpuFeatures found;
  uint32_t a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0 || !bit(c, 27)) return found;  // 27: OSXSAVE
  const uint64_t xcr0 = read_xcr0();
  const bool ymm = (xcr0 & 0x6) == 0x6;
  const bool zmm = (xcr0 & 0xe6) == 0xe6;
  const bool tiles = (xcr0 & 0x60000) == 0x60000 && os_offers_tiles();
  found.fma = ymm && bit(c, 12);
  found.f16c = ymm && bit(c, 29);
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return found;
  const uint32_t max_subleaf = a;
  found.avx2 = ymm && bit(b, 5);
  found.avx512f = zmm && bit(b, 16);
  found.avx512dq = zmm && bit(b, 17);
  found.avx512bw = zmm && bit(b, 30);
  found.avx512vl = zmm && bit(b, 31);
  found.avx512_vnni = zmm && bit(c, 11);
  found.amx_bf16 = tiles && bit(d, 22);
  found.amx_tile = tiles && bit(d, 24);
  found.amx_int8 = tiles && bit(d, 25);
  if (max_subleaf >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d) != 0) {
    found.avx_vnni = ymm && bit(a, 4);
    found.avx512_bf16 = zmm && bit(a, 5);
  }
  return found;
}

std::string allow_amx() {
  if (syscall(SYS_arch_prctl, kRequestState, kTileData) == 0) return {};
  return std::string("Linux refused this process the state of AMX tiles: ") + std::strerror(errno);
}
#else
CpuFeatures detect_cpu_features() { return {}; }

std::string allow_amx() { return "this processor has no AMX"; }
#endif

}  // namespace inlay::kernels
