// The algorithm of amx.cpp with portable C++ in the place of tiles and vectors, beside scalar.cpp:
// tests run it on every machine. Everything else is in an anonymous namespace, so that the linker
// cannot pick this file's copy of a function for another ISA.
#include "../grids.h"
#include "../small_floats.h"
#include "parts.h"

namespace inlay::kernels::amx_emulated {
namespace {

// clang-format off: each needs the one before
#include "vec_scalar.inl.h"
#include "dot_scalar.inl.h"
#include "codes_scalar.inl.h"
#include "../decode.inl.h"
#include "points_scalar.inl.h"
#include "../blocks.inl.h"
#include "bf16_fma.inl.h"
#include "tiles_emulated.inl.h"
#include "../product_steps.inl.h"
#include "../product_tiles.inl.h"
#include "../product.inl.h"
#include "../product_amx.inl.h"
// clang-format on

void integer_product_by_rows(const PanelProduct& p) {
  if (p.rows < kMinTileRows) return scalar::kIntegers.product(p);
  tile_integer_product(p);
}

}  // namespace

const IntegerProducts kIntegers = {"plain, tiles", Dot::kBias8, integer_product_by_rows};
const Bf16Products kBf16 = {"plain, tiles", tile_bf16_product};

}  // namespace inlay::kernels::amx_emulated
