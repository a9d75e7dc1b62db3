// Operators over whole batches: they split the work over the thread pool and call the leaf kernels
// of the selected ISA. Arguments are checked by the caller (the bindings); shapes are as the suffix
// letters in kernel_table.h say, inner dimensions are contiguous, strides count elements.
#pragma once

#include <cstdint>
#include <span>

#include "kernel_table.h"
#include "weights.h"

namespace inlay::kernels {

struct ConstRows {
  const float* data;
  int64_t rows;
  int64_t cols;
  int64_t stride;
  const float* row(int64_t index) const { return data + index * stride; }
};

struct Rows {
  float* data;
  int64_t rows;
  int64_t cols;
  int64_t stride;
  float* row(int64_t index) const { return data + index * stride; }
};

// out = x W^T (+ bias) (+ out)
void linear(ConstRows x_TK, const LinearWeight& weight, const float* bias_N, bool accumulate,
            Rows out_TN);

// out = x W^T with a matrix for each head. The weight has as many panels for each of them.
struct LinearHeads {
  ConstRows x_TK;  // of the first head
  int64_t x_head_stride;
  const LinearWeight* weight;
  int64_t heads;
  int64_t out_features;  // of a head
  float* out;
  int64_t out_token_stride;
  int64_t out_head_stride;
};
void linear_heads(const LinearHeads& p);

class ExpertAdapter;

// Rows [first, end) of a call of moe(), and what an adapter adds to its experts (null: nothing).
struct ExpertRows {
  const ExpertAdapter* experts;
  const ExpertAdapter* shared;
  int64_t first;
  int64_t end;
};

// Routed experts. expert_ids and routing are [T][top_k]; a negative id is skipped, and so is an
// expert whose mask is 0 (null: all run). Each token's shared experts are added first, then its
// routed ones in ascending id order, after what out already holds when accumulating.
struct Moe {
  ConstRows x_TM;
  const ExpertWeights* experts;
  const int32_t* expert_ids_TK;
  const float* routing_TK;
  int64_t top_k;
  const uint8_t* expert_mask_E;
  Activation activation;
  const ExpertWeights* shared;  // run for every token with weight 1; may be null
  bool accumulate;
  Rows out_TM;
  std::span<const ExpertRows> adapters = {};  // in the order of their rows, which are apart
};
void moe(const Moe& p);

void rms_norm(ConstRows x_TM, const float* weight_M, float eps, Rows out_TM);

// out = silu(gate) * up, gate and up being the halves of a row.
void silu_mul(ConstRows gate_up_T2F, Rows out_TF);

// The same with GELU, by its approximation with tanh.
void gelu_mul(ConstRows gate_up_T2F, Rows out_TF);

// False when a row has no scores: it holds a NaN, and for a softmax +infinity, or -infinity alone;
// the outputs are then meaningless.
[[nodiscard]] bool router_topk(ConstRows logits_TE, int64_t top_k, const RouterRules& rules,
                               int32_t* out_ids_TK, float* out_weights_TK);

// A page-first KV pool: [num_pages][layers][k, v][page_tokens][kv_heads][head_dim]. A latent one
// has k alone, of one head: its leading elements are the value.
struct KvGeometry {
  int64_t layers;
  int64_t page_tokens;
  int64_t kv_heads;
  int64_t head_dim;
  DType dtype;
  bool latent = false;

  int64_t element_bytes() const { return dtype == DType::kF32 ? 4 : 2; }
  int64_t plane_bytes() const { return page_tokens * kv_heads * head_dim * element_bytes(); }
  int64_t planes() const { return latent ? 1 : 2; }
  int64_t page_bytes() const { return planes() * layers * plane_bytes(); }
  uint8_t* k_plane(uint8_t* pool, int64_t layer) const {
    return pool + planes() * layer * plane_bytes();
  }
  uint8_t* v_plane(uint8_t* pool, int64_t layer) const {
    return k_plane(pool, layer) + (latent ? 0 : plane_bytes());
  }
};

// `rows` describes all tokens; it is split over them.
void rope_and_store(const RopeRows& rows);

struct PagedAttention {
  const float* q;  // [T][q_heads][head_dim]
  int64_t q_token_stride;
  int64_t q_head_stride;
  int64_t q_heads;
  uint8_t* pool;
  KvGeometry geometry;
  int64_t layer;
  const int32_t* page_table;  // [B][page_table_stride]
  int64_t page_table_stride;
  const int32_t* query_starts;  // [B + 1]
  const int32_t* context_lens;  // [B]
  int64_t sequences;
  float scale;
  int64_t window;
  const float* sinks;  // [q_heads] or null
  float softcap;       // scores become softcap * tanh(score / softcap); 0: they stay
  float* out;          // [T][q_heads][value_dim]
  int64_t out_token_stride;
  int64_t out_head_stride;
  int64_t value_dim;  // head_dim, or of a latent geometry at most that
};

void paged_attention(const PagedAttention& p);

}  // namespace inlay::kernels
