// Integer products with AVX-512 VNNI beside avx512.cpp. Compiled with the matching -m flags;
// reached only when the processor and the OS allow it (select.cpp). Everything else is in an
// anonymous namespace, so that the linker cannot pick this file's copy of a function for another
// ISA.
#include <immintrin.h>

#include "../grids.h"
#include "../small_floats.h"
#include "parts.h"

namespace inlay::kernels::avx512_vnni {
namespace {

// clang-format off: each needs the one before
#include "vec_avx512.inl.h"
#include "ints_avx512.inl.h"
#include "dot_avx512_vnni.inl.h"
#include "codes_avx512.inl.h"
#include "../decode.inl.h"
#include "points_avx2.inl.h"
#include "../blocks.inl.h"
#include "bf16_fma.inl.h"
#include "../product_steps.inl.h"
#include "../product_tiles.inl.h"
#include "../product.inl.h"
// clang-format on

}  // namespace

const IntegerProducts kIntegers = {Dot::kName, Dot::kBias8, integer_product};

}  // namespace inlay::kernels::avx512_vnni
