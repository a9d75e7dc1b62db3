// What the leaf kernels of training take (kernel_table.h): frozen weights turned into the panels of
// a product, forward or transposed; the products with the matrices of a LoRA; and the activation
// with its derivative. Values are fp32, or bf16 where `dtype` says so.
//
// Only plain structs: ISA files include this header.
#pragma once

#include <cstddef>
#include <cstdint>

#include "attention_tile.h"
#include "formats.h"

namespace inlay::kernels {

// g = min(gate, limit), u = clamp(up, -limit, limit), result
// g * sigmoid(alpha * (g + cubic * g^3)) * (u + offset). Training has no cubic part.
struct Activation {
  float alpha = 1.0f;
  float limit = __builtin_inff();
  float up_offset = 0.0f;
  float cubic = 0.0f;
};

// A stretch of K of a panel as a bf16 panel of its own; weights are rounded to the nearest bf16.
struct DecodePanel {
  const std::byte* panel;
  Format format;    // not kF32, not kBf16
  int64_t k;        // of the panel, not padded
  int64_t first_k;  // a multiple of 32
  int64_t count_k;  // a multiple of 32, within the padded K
  std::byte* out;
};

// kPanel steps of K of some columns of a panel, transposed: they become a panel's kPanel columns,
// and the columns `columns` of its steps. Steps behind the panel's end become zero columns.
struct TransposePanel {
  const std::byte* steps;  // fp32 or bf16, of the first step
  DType dtype;
  int64_t count_k;  // steps that are there, at most kPanel; of bf16 a multiple of 32
  int64_t column;   // 0 or kPanel / 2
  int64_t columns;  // kPanel / 2 or kPanel
  std::byte* out;   // of the first step
};

// out[r][j] = scale * <rows[r], matrix[j]> (+ out[r][j]). A matrix in bf16 takes rows in fp32.
struct LowRankDot {
  const std::byte* const* rows;
  int64_t count;
  DType dtype;  // of the rows
  const void* matrix;
  int64_t matrix_stride;  // in values
  int64_t rank;
  int64_t k;
  float scale;
  bool accumulate;
  float* out;
  int64_t out_stride;
  DType matrix_dtype = DType::kF32;
};

// c[r][0..cols) += sum over j of low[r][j] * matrix[j][0..cols). Rows of c are kPanel apart, those
// of the matrix `cols`, which is kPanel / 2 or kPanel.
struct LowRankAdd {
  float* c;
  int64_t rows;
  int64_t cols;
  const float* low;
  int64_t low_stride;
  const void* matrix;
  int64_t rank;
  DType matrix_dtype = DType::kF32;
};

// grad[j][0..kPanel) = sum over r of low[r][j] * rows[r][0..kPanel) (+ grad[j])
struct LowRankGrad {
  const std::byte* const* rows;
  int64_t count;
  DType dtype;
  const float* low;
  int64_t low_stride;
  int64_t rank;
  bool accumulate;
  float* grad;
};

// The results of a gate/up panel: kept with their biases, and activated. `gate`, `up` and
// `activated` are the places of the panel's kPanel / 2 columns in the first row.
struct SaveGated {
  const float* c;
  int64_t rows;
  const float* gate_bias;  // null: no biases
  const float* up_bias;
  int64_t bias_cols;
  Activation activation;
  DType dtype;
  std::byte* gate;
  std::byte* up;
  int64_t stride;  // bytes
  std::byte* activated;
  int64_t activated_stride;
};

// Of kPanel columns of some rows. `gate` and `up` hold values, and their gradients afterwards.
struct GatedBackward {
  const float* grad;    // [rows][kPanel] of the activated values, before the routing weight
  const float* weight;  // [rows]
  int64_t rows;
  Activation activation;
  DType dtype;
  std::byte* gate;
  std::byte* up;
  int64_t stride;    // bytes
  float* activated;  // out: [rows][kPanel]
  float* grad_gate;  // out: [rows][kPanel]
  float* grad_up;    // out: [rows][kPanel]
  float* dot;        // out: [rows] <grad, activated>
};

}  // namespace inlay::kernels
