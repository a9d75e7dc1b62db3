// Packed weights: panels of kPanel output columns (layout in kernel_table.h), owned, 64-byte
// aligned. Packing copies once; a loader can hand over rows or experts one by one and drop them.
#pragma once

#include <cstdint>

#include "aligned_buffer.h"
#include "kernel_table.h"

namespace inlay::kernels {

// A borrowed row-major matrix; bf16 as its bits.
struct SourceMatrix {
  const void* data;
  DType dtype;
  int64_t rows;
  int64_t cols;
  int64_t row_stride;  // elements
};

// Bytes of one panel with an inner size of k.
constexpr int64_t panel_bytes(int64_t k, DType dtype) {
  return (dtype == DType::kF32 ? k : (k + 1) / 2) * kPanel * 4;
}
constexpr int64_t panel_count(int64_t columns) { return (columns + kPanel - 1) / kPanel; }

// y = x W^T with W [N][K].
class LinearWeight {
 public:
  LinearWeight(int64_t out_features, int64_t in_features, DType dtype);

  // Fills output columns [first, first + source.rows).
  void set_rows(int64_t first, const SourceMatrix& source);
  // Writes row-major [N][K] in the weight's own dtype.
  void unpack(void* target_NK) const;

  int64_t out_features() const { return out_features_; }
  int64_t in_features() const { return in_features_; }
  DType dtype() const { return dtype_; }
  int64_t panels() const { return panel_count(out_features_); }
  const std::byte* panel(int64_t index) const {
    return memory_.data() + index * panel_bytes(in_features_, dtype_);
  }
  int64_t size_bytes() const { return static_cast<int64_t>(memory_.size()); }

 private:
  int64_t out_features_;
  int64_t in_features_;
  DType dtype_;
  AlignedBuffer memory_;
};

// Gate, up and down of every expert of one layer. A gate/up panel holds kPanel/2 gate columns, then
// the same kPanel/2 up columns, so that one product yields both operands of silu(gate) * up.
class ExpertWeights {
 public:
  static constexpr int64_t kHalf = kPanel / 2;

  ExpertWeights(int64_t num_experts, int64_t hidden, int64_t intermediate, DType dtype);

  void set(int64_t expert, const SourceMatrix& gate_FM, const SourceMatrix& up_FM,
           const SourceMatrix& down_MF);

  int64_t num_experts() const { return num_experts_; }
  int64_t hidden() const { return hidden_; }
  int64_t intermediate() const { return intermediate_; }
  DType dtype() const { return dtype_; }
  int64_t gate_up_panels() const { return (intermediate_ + kHalf - 1) / kHalf; }
  int64_t down_panels() const { return panel_count(hidden_); }
  const std::byte* gate_up_panel(int64_t expert, int64_t index) const {
    return gate_up_.data() + (expert * gate_up_panels() + index) * panel_bytes(hidden_, dtype_);
  }
  const std::byte* down_panel(int64_t expert, int64_t index) const {
    return down_.data() + (expert * down_panels() + index) * panel_bytes(intermediate_, dtype_);
  }
  int64_t size_bytes() const { return static_cast<int64_t>(gate_up_.size() + down_.size()); }

 private:
  int64_t num_experts_;
  int64_t hidden_;
  int64_t intermediate_;
  DType dtype_;
  AlignedBuffer gate_up_;
  AlignedBuffer down_;
};

}  // namespace inlay::kernels
