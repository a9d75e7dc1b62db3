// Contract of the loops that find a processor's multiply-add peaks.
//
// Each runs rounds of `accumulators` independent instructions on registers or tiles alone, so
// that nothing but the multiply-add units can be the bound. They are written as assembly because a
// compiler's form of the same loop reached half the rate. The instruction set of a loop must have
// been checked before it is called.
#pragma once

#include <cstdint>

namespace inlay::kernels {

constexpr int64_t kPeakRounds = 1 << 14;

struct PeakLoop {
  void (*run)();
  int64_t operations;  // of one call, two per multiply-add
};

// Vectors of 16 bytes in plain C++; on every processor.
extern const PeakLoop kFp32Portable;
#if defined(__x86_64__)
extern const PeakLoop kFp32Avx2;        // avx2, fma: vfmadd231ps
extern const PeakLoop kFp32Avx512;      // avx512f: the same, 64 bytes wide
extern const PeakLoop kBf16Avx512;      // avx512_bf16: vdpbf16ps
extern const PeakLoop kInt8Avx2;        // avx2: vpmaddubsw, sums kept in 16 bits
extern const PeakLoop kInt8Avx2Vnni;    // avx_vnni: vpdpbusd
extern const PeakLoop kInt8Avx512;      // avx512bw: vpmaddubsw, 64 bytes wide
extern const PeakLoop kInt8Avx512Vnni;  // avx512_vnni: vpdpbusd, 64 bytes wide
extern const PeakLoop kBf16Amx;         // amx_tile, amx_bf16, allow_amx(): tdpbf16ps
extern const PeakLoop kInt8Amx;         // amx_tile, amx_int8, allow_amx(): tdpbsud
#endif

}  // namespace inlay::kernels
