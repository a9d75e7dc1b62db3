// AMX tiles for many rows; few rows of integers go through avx512_vnni.cpp, what is neither integer
// nor bf16 through avx512.cpp. Compiled with the matching -m flags; reached only when the processor
// and the OS allow it (select.cpp). Everything else is in an anonymous namespace, so that the
// linker cannot pick this file's copy of a function for another ISA.
#include <immintrin.h>

#include "../grids.h"
#include "../small_floats.h"
#include "parts.h"

namespace inlay::kernels::amx {
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
#include "tiles_amx.inl.h"
#include "../product_steps.inl.h"
#include "../product_tiles.inl.h"
#include "../product.inl.h"
#include "../product_amx.inl.h"
// clang-format on

void integer_product_by_rows(const PanelProduct& p) {
  if (p.rows < kMinTileRows) return avx512_vnni::kIntegers.product(p);
  tile_integer_product(p);
}

}  // namespace

const IntegerProducts kIntegers = {"tdpbsud, tiles", Dot::kBias8, integer_product_by_rows};
const Bf16Products kBf16 = {"tdpbf16ps, tiles", tile_bf16_product};

}  // namespace inlay::kernels::amx
