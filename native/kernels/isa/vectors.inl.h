// All that needs no more than `Vec` of the including ISA file, beside its products.
// Included inside an anonymous namespace, after product.inl.h: see isa/*.cpp.

// clang-format off: each needs the one before
#include "../pack_rows.inl.h"
#include "../quantize.inl.h"
#include "../rows.inl.h"
#include "../attention_product.inl.h"
#include "../attention.inl.h"
#include "../decode_panel.inl.h"
#include "../low_rank.inl.h"
#include "../gated_training.inl.h"
// clang-format on

constexpr VectorKernels vector_kernels() {
  return {Vec::kName,      float32_product,   pack_rows,     quantize_row,  store_rows,
          gated_rows,      add_weighted_rows, norm_rows,     rope_rows,     attention_tile,
          merge_attention, router_rows,       decode_panel,  unpack_blocks, transpose_panel,
          low_rank_dot,    low_rank_add,      low_rank_grad, save_gated,    gated_backward};
}
