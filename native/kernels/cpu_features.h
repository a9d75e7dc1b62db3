// Processor features, masked by what the operating system saves on a context switch.
#pragma once

#include <string>

namespace inlay::kernels {

struct CpuFeatures {
  bool avx2 = false;
  bool fma = false;
  bool f16c = false;
  bool avx_vnni = false;
  bool avx512f = false;
  bool avx512bw = false;
  bool avx512dq = false;
  bool avx512vl = false;
  bool avx512_vnni = false;
  bool avx512_bf16 = false;
  bool amx_tile = false;
  bool amx_int8 = false;
  bool amx_bf16 = false;
};

// Reads CPUID and XCR0; everything is false on processors other than x86-64. AMX is reported when
// the OS offers its state to processes, which have to ask for it: see allow_amx.
CpuFeatures detect_cpu_features();

// Asks Linux to let the threads of this process use AMX tiles, once for all. Returns why it
// refused, empty when it did not.
std::string allow_amx();

}  // namespace inlay::kernels
