// Contract between the C++ that checks, splits and schedules work and the leaf kernels that are
// compiled once per instruction set.
//
// Shape letters: T tokens, N output columns, K inner size, M model dim, F expert width, H heads,
// D head dim, E experts.
//
// Float formats: every output element is one accumulator that runs over K in ascending order, in
// steps that the ISA fixes. Integer formats: exact integer sums per group of K, scaled and added in
// fp32 in ascending order. Row tiles, K slices and threads therefore never change a bit of a
// token's result (within one ISA; ISAs differ because not all of them fuse multiply and add).
//
// Only plain structs and enums: ISA files include this header and must not emit weak symbols.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "attention_tile.h"
#include "formats.h"
#include "training_leaves.h"

namespace inlay::kernels {

// Rows per product, so that the fp32 results of one product (24 KiB) stay in L1/L2.
constexpr int64_t kMaxRows = 96;

// Bytes that a product may use for a slice of weights in another layout, and for sums of tiles.
constexpr int64_t kProductScratch = 40 * 1024;

// Rows of activations to the operand of a format, K padded with zeros (see formats.h). A row with a
// NaN or an infinity gets NaN as its scales, so that its results are NaN.
struct PackRows {
  const float* x;
  int64_t x_stride;
  int64_t rows;
  int64_t k;
  Format format;  // not kF32, which is read as it is
  std::byte* out;
  int64_t out_stride;
};

struct Fetch {
  const std::byte* data = nullptr;
  int64_t bytes = 0;
  // So many pieces of `bytes`, whose beginnings lie `stride` bytes apart.
  int64_t pieces = 1;
  int64_t stride = 0;
};

// c[panels][rows][kPanel] = X[rows][k] * panel, for consecutive panels. Several panels share the
// reading of X. Only the first `cols` columns of the last panel are needed.
struct PanelProduct {
  const std::byte* const* x_rows;  // packed rows, fp32 rows for kF32; see KernelTable::even_rows
  int64_t rows;                    // at most kMaxRows
  const std::byte* panel;
  int64_t panels;
  Format format;
  int64_t k;  // not padded
  int64_t cols;
  float* c;
  std::byte* scratch;  // kProductScratch bytes, aligned to a page: on the stack it was half as fast
  // Weights and rows that the caller wants next: fetched towards the caches meanwhile. The second
  // one may have pieces.
  Fetch next[2];
  // Whether to fetch in a window that runs ahead in the same panels and reaches only the head of
  // next[0], because a panel beside the one in use is too much for the caches, or too early.
  bool window;
  bool accumulate = false;  // adds to c; float32 and bfloat16 alone
};

// One output column's weights to integers or codes of small floats, and scales as their bits (NaNs
// where a weight is not finite). The arithmetic is the same on every ISA.
struct QuantizeRow {
  const float* x;
  int64_t k;
  Format format;
  int8_t* q;         // [k padded], without bias
  uint32_t* scales;  // [groups]
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

// out_rows[r][0..cols) += weight[r] * (c[r] (+ bias))
struct AddWeightedRows {
  const float* c;
  const float* bias;  // may be null
  int64_t rows;
  int64_t cols;
  const float* weight;
  float* const* out_rows;
};

// out[r][0..cols) = activation(gate[r] (+ gate_bias), up[r] (+ up_bias))
struct GatedRows {
  const float* gate;
  const float* up;
  int64_t in_stride;
  const float* gate_bias;  // null: no biases
  const float* up_bias;
  Activation activation;
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
  int64_t rotary_start;  // of a head: what lies before it is not rotated
  int64_t rotary_dim;
  const float* cos;  // [max_positions][rotary_dim / 2]
  const float* sin;
  const float* q_norm;  // [head_dim] or null
  const float* k_norm;
  float eps;
  bool rotate_first;     // and normalise then
  const int64_t* slots;  // page_id * page_tokens + offset; negative: not stored
  int64_t page_tokens;
  int64_t page_bytes;
  uint8_t* k_plane;  // plane of this layer in page 0
  uint8_t* v_plane;  // null: rows have no v
  DType dtype;
};

// How experts are chosen and weighted. A score is the softmax over all experts, or the sigmoid of
// its logit; the correction is added for the choice alone. Of `groups` alike, which count their
// best expert or the sum of their best two, experts are chosen from `groups_per_token`.
struct RouterRules {
  bool sigmoid = false;
  bool normalize = false;  // to sum 1
  bool best_two = false;   // each group has two, then
  int64_t groups = 1;      // divides the experts
  int64_t groups_per_token = 1;
  float scale = 1;
  const float* correction = nullptr;  // [experts]
};

// Floats: scores, what is wanted, and what groups count.
static constexpr int64_t router_scratch(int64_t experts) { return 3 * round_up(experts, 16); }

// Scores of all experts, then the top_k most wanted, ties to the lower id, in descending order.
struct RouterRows {
  const float* logits;
  int64_t logits_stride;
  int64_t rows;
  int64_t experts;
  int64_t top_k;
  RouterRules rules;
  int32_t* out_ids;
  float* out_weights;
  float* scratch;  // router_scratch(experts) floats
  bool undefined;  // out: a row whose scores are not numbers
};

// What needs no more than a vector unit for fp32.
struct VectorKernels {
  const char* name;  // for people
  void (*float32_product)(const PanelProduct&);
  void (*pack_rows)(const PackRows&, int32_t bias8);  // bias8: see IntegerProducts
  void (*quantize_row)(const QuantizeRow&);
  void (*store_rows)(const StoreRows&);
  void (*gated_rows)(const GatedRows&);
  void (*add_weighted_rows)(const AddWeightedRows&);
  void (*norm_rows)(const NormRows&);
  void (*rope_rows)(const RopeRows&);
  void (*attention_tile)(const AttentionTile&);
  void (*merge_attention)(const AttentionTile&);
  void (*router_rows)(RouterRows&);
  void (*decode_panel)(const DecodePanel&);
  void (*unpack_blocks)(const DecodePanel&);  // to fp32 [steps][kPanel]
  void (*transpose_panel)(const TransposePanel&);
  void (*low_rank_dot)(const LowRankDot&);
  void (*low_rank_add)(const LowRankAdd&);
  void (*low_rank_grad)(const LowRankGrad&);
  void (*save_gated)(const SaveGated&);
  void (*gated_backward)(const GatedBackward&);
};

// Products of formats whose operand is int8.
struct IntegerProducts {
  const char* name;
  // What the product of 8-bit weights adds to its sum for each unit of the activations; packed rows
  // take it out.
  int32_t bias8;
  void (*product)(const PanelProduct&);
};

// Products of formats whose operand is bf16.
struct Bf16Products {
  const char* name;
  void (*product)(const PanelProduct&);
};

// From so many rows on AMX tiles win: below, the vector product already keeps up with memory, needs
// no tile set-up and reads the rows in place.
constexpr int64_t kMinTileRows = 8;

// A variant. Its parts may come from several ISA files: what an instruction set does not improve is
// compiled once, in the file of the one below.
struct KernelTable {
  const char* isa;
  const VectorKernels& vectors;
  const IntegerProducts& integers;
  const Bf16Products& bf16;
  int64_t even_rows = kMaxRows + 1;  // products of so many rows want them equally far apart

  void pack_rows(const PackRows& p) const { vectors.pack_rows(p, integers.bias8); }
  void panel_product(const PanelProduct& p) const {
    switch (info(p.format).operand) {
      case Operand::kF32:
        return vectors.float32_product(p);
      case Operand::kBf16:
        return bf16.product(p);
      case Operand::kI8:
        return integers.product(p);
    }
  }
};

}  // namespace inlay::kernels
