// Routed experts in training: frozen weights, LoRA on every expert. The forward pass keeps what the
// backward pass needs. Arguments are checked by the caller.
//
// Products run in fp32 for float32 weights, else in bf16, into which a slice of a panel is taken
// apart in a thread's cache, once for all rows of its expert. The transposed products of the
// backward pass read the same panels: 64 of their steps, of as many panels as a slice is long, are
// transposed there. A slice stays in L1 while the rows are multiplied with it.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "aligned_buffer.h"
#include "dropout.h"
#include "operators.h"
#include "weights.h"

namespace inlay::kernels {

// Low-rank additions scale B (A x). The matrices are [experts][rank][in] and [experts][out][rank].
enum LoraMatrix : int { kGateA, kGateB, kUpA, kUpB, kDownA, kDownB, kLoraMatrices };
struct MoeLora {
  std::array<const float*, kLoraMatrices> matrices{};
  int64_t rank = 0;  // 0: none
  float scale = 1;
  Dropout dropout{0, 0};
};
using MoeLoraGrads = std::array<float*, kLoraMatrices>;

// The chosen (token, expert) pairs sorted by expert, then token.
struct ChosenPairs {
  std::vector<int64_t> begin;  // [experts + 1] into the pairs
  std::vector<int32_t> token;
  std::vector<float> weight;
  std::vector<int64_t> choice;  // of the token-major ids and routing weights
  int64_t count() const { return static_cast<int64_t>(token.size()); }
};

// What one forward pass leaves to its backward pass, for one use.
class SavedMoe {
 public:
  // The forward pass, without masks, shared experts and accumulation. The weights and the matrices
  // outlive it; all else is copied.
  SavedMoe(const Moe& p, const MoeLora& lora, bool recompute);

  // The backward pass, after use(), which nobody called before. Lets go of what was saved.
  void gradients(ConstRows grad_out_TM, Rows grad_x_TM, float* grad_routing_TK,
                 const MoeLoraGrads& grads);

  const ExpertWeights& experts() const { return weights_; }
  const MoeLora& lora() const { return lora_; }
  const Activation& activation() const { return activation_; }
  int64_t tokens() const { return tokens_; }
  int64_t top_k() const { return top_k_; }
  bool used() const { return used_; }
  void use() { used_ = true; }
  int64_t size_bytes() const;

 private:
  friend class MoePass;

  const ExpertWeights& weights_;
  MoeLora lora_;
  Activation activation_;
  int64_t tokens_;
  int64_t top_k_;
  bool recompute_;
  bool used_ = false;
  ChosenPairs pairs_;
  AlignedBuffer x_;        // [tokens] rows
  AlignedBuffer gate_up_;  // [pairs] gate and up values, then their gradients
  AlignedBuffer low_;      // fp32 [3][pairs][rank]: scale A x of gate, up and down
};

}  // namespace inlay::kernels
