// Contract between the C++ that checks, splits and schedules work and the leaf kernels that are
// compiled once per instruction set.
//
// Shape letters: T tokens, N output columns, K inner size, M model dim, F expert width, H heads,
// D head dim, E experts.
//
// Every output element is one fp32 accumulator that runs over K in ascending order with one
// multiply-add per step. Row tiles, K slices and threads therefore never change a bit of a
// token's result (within one ISA; ISAs differ because not all of them fuse the multiply-add).
//
// Only plain structs and enums: ISA files include this header and must not emit weak symbols.
#pragma once

#include <cstddef>
#include <cstdint>

#include "attention_tile.h"

namespace inlay::kernels {

// Weights are packed in panels of kPanel output columns:
//   fp32  [panels][K][kPanel]
//   bf16  [panels][ceil(K/2)][kPanel][2]   two K steps of one column share 32 bits, the odd step of
//                                          the last pair is zero when K is odd. This is also the
//                                          operand order of vdpbf16ps and of AMX tiles.
// Columns past N are zero. The layout does not depend on the ISA.
constexpr int64_t kPanel = 64;

// K steps per slice: a slice of fp32 panel (128 KiB) stays in L2 while the row tiles pass over it.
constexpr int64_t kSlice = 512;

// Rows per product, so that the fp32 results of one product (24 KiB) stay in L1/L2.
constexpr int64_t kMaxRows = 96;

// c[panels][rows][kPanel] = X[rows][k] * panel, for consecutive panels. Several panels share the
// reading of X. Only the first `cols` columns of the last panel are needed.
struct PanelProduct {
  const float* const* x_rows;
  int64_t rows;  // at most kMaxRows
  const void* panel;
  int64_t panels;
  int64_t panel_words;  // distance of panels in 32-bit words
  DType dtype;
  int64_t k;
  int64_t cols;
  float* c;
};

// out[r][0..cols) = c[r] (+ bias) (+ out[r])
struct StoreRows {
  const float* c;
  int64_t rows;
  int64_t cols;
  const float* bias;  // may be null
  bool accumulate;
  float* out;
  int64_t out_stride;
};

// out_rows[r][0..cols) += weight[r] * c[r]
struct AddWeightedRows {
  const float* c;
  int64_t rows;
  int64_t cols;
  const float* weight;
  float* const* out_rows;
};

// out[r][0..cols) = silu(gate[r]) * up[r]
struct SiluMulRows {
  const float* gate;
  const float* up;
  int64_t in_stride;
  int64_t rows;
  int64_t cols;
  float* out;
  int64_t out_stride;
};

struct NormRows {
  const float* x;
  int64_t x_stride;
  const float* weight;
  float eps;
  int64_t rows;
  int64_t cols;
  float* out;
  int64_t out_stride;
};

// Normalise and rotate q and k of consecutive fused rows [q heads | k heads | v heads] in place and
// write k and v to the cache.
struct RopeRows {
  float* qkv;
  int64_t qkv_stride;
  const int32_t* positions;
  int64_t rows;
  int64_t q_heads;
  int64_t kv_heads;
  int64_t head_dim;
  int64_t rotary_dim;
  const float* cos;  // [max_positions][rotary_dim / 2]
  const float* sin;
  const float* q_norm;  // [head_dim] or null
  const float* k_norm;
  float eps;
  const int64_t* slots;  // page_id * page_tokens + offset; negative: not stored
  int64_t page_tokens;
  int64_t page_bytes;
  uint8_t* k_plane;  // plane of this layer in page 0
  uint8_t* v_plane;
  DType dtype;
};

// Softmax over all experts, then the top_k largest, ties to the lower id, in descending order.
struct RouterRows {
  const float* logits;
  int64_t logits_stride;
  int64_t rows;
  int64_t experts;
  int64_t top_k;
  bool normalize;
  int32_t* out_ids;
  float* out_weights;
  float* scratch;  // experts rounded up to 16, floats
  bool found_nan;  // out
};

struct KernelTable {
  const char* isa;
  void (*panel_product)(const PanelProduct&);
  void (*store_rows)(const StoreRows&);
  void (*add_weighted_rows)(const AddWeightedRows&);
  void (*silu_mul_rows)(const SiluMulRows&);
  void (*norm_rows)(const NormRows&);
  void (*rope_rows)(const RopeRows&);
  void (*attention_tile)(const AttentionTile&);
  void (*merge_attention)(const AttentionTile&);
  void (*router_rows)(RouterRows&);
};

}  // namespace inlay::kernels
