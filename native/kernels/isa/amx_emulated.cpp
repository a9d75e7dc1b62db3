// The algorithm of amx.cpp with portable C++ in the place of tiles and vectors: tests run it on
// every machine. Everything is in an anonymous namespace, so that the linker cannot pick this
// file's copy of a function for another ISA.
#include "../kernel_table.h"
#include "../small_floats.h"

namespace inlay::kernels::amx_emulated {
namespace {

// clang-format off: each needs the one before
#include "vec_scalar.inl.h"
#include "dot_scalar.inl.h"
#include "codes_scalar.inl.h"
#include "../decode.inl.h"
#include "bf16_fma.inl.h"
#include "tiles_emulated.inl.h"
#include "../product_steps.inl.h"
#include "../product_tiles.inl.h"
#include "../product.inl.h"
#include "../product_amx.inl.h"
#include "../pack_rows.inl.h"
#include "../quantize.inl.h"
#include "../rows.inl.h"
#include "../attention_product.inl.h"
#include "../attention.inl.h"
#include "../decode_panel.inl.h"
#include "../low_rank.inl.h"
#include "../gated_training.inl.h"
#include "table.inl.h"
// clang-format on

}  // namespace

extern const KernelTable kTable;
const KernelTable kTable = make_table("amx_emulated", "plain, tiles", "plain, tiles", kMinTileRows);

}  // namespace inlay::kernels::amx_emulated
