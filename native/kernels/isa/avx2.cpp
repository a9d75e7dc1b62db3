// AVX2 + FMA. Compiled with the matching -m flags; reached only when the processor and the
// OS allow it (select.cpp). Everything is in an anonymous namespace, so that the linker cannot pick
// this file's copy of a function for another ISA.
#include <immintrin.h>

#include "../kernel_table.h"
#include "../small_floats.h"

namespace inlay::kernels::avx2 {
namespace {

// clang-format off: each needs the one before
#include "vec_avx2.inl.h"
#include "ints_avx2.inl.h"
#include "dot_avx2.inl.h"
#include "codes_avx2.inl.h"
#include "../decode.inl.h"
#include "bf16_fma.inl.h"
#include "../product_steps.inl.h"
#include "../product_tiles.inl.h"
#include "../product.inl.h"
#include "../pack_rows.inl.h"
#include "../quantize.inl.h"
#include "../rows.inl.h"
#include "../attention_product.inl.h"
#include "../attention.inl.h"
#include "../decode_panel.inl.h"
#include "../low_rank.inl.h"
#include "../gated_training.inl.h"
// clang-format on

void panel_product(const PanelProduct& p) { vector_product(p); }

#include "table.inl.h"

}  // namespace

extern const KernelTable kTable;
const KernelTable kTable = make_table("avx2");

}  // namespace inlay::kernels::avx2
