// What each ISA file offers; select.cpp makes variants of it.
#pragma once

#include "../kernel_table.h"

namespace inlay::kernels {

namespace scalar {
extern const VectorKernels kVectors;
extern const IntegerProducts kIntegers;
extern const Bf16Products kBf16;
}  // namespace scalar
namespace amx_emulated {
extern const IntegerProducts kIntegers;
extern const Bf16Products kBf16;
}  // namespace amx_emulated
namespace avx2 {
extern const VectorKernels kVectors;
extern const IntegerProducts kIntegers;
extern const Bf16Products kBf16;
}  // namespace avx2
namespace avx2_vnni {
extern const IntegerProducts kIntegers;
}
namespace avx512 {
extern const VectorKernels kVectors;
extern const IntegerProducts kIntegers;
extern const Bf16Products kBf16;
}  // namespace avx512
namespace avx512_vnni {
extern const IntegerProducts kIntegers;
}
namespace avx512_bf16 {
extern const Bf16Products kBf16;
}
namespace amx {
extern const IntegerProducts kIntegers;
extern const Bf16Products kBf16;
}  // namespace amx

}  // namespace inlay::kernels
