// Packed weights: panels of kPanel output columns (layouts in formats.h), 64-byte aligned, owned or
// mapped from a packed-weights file. Packing copies once; a loader can hand over rows or experts
// one by one and drop them.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "aligned_buffer.h"
#include "kernel_table.h"
#include "panels.h"

namespace inlay::kernels {

constexpr int64_t panel_count(int64_t columns) { return (columns + kPanel - 1) / kPanel; }

// Bytes that are owned or borrowed from a mapping, which `owner` keeps alive.
class WeightMemory {
 public:
  static constexpr int kAnyNode = -1;

  WeightMemory() = default;
  WeightMemory(int64_t size_bytes, int node);  // owned, zeroed; node as in AlignedBuffer
  WeightMemory(const std::byte* data, int64_t size_bytes, std::shared_ptr<const void> owner);

  const std::byte* data() const { return data_; }
  // As AlignedBuffer::prefer_node(), of owned bytes.
  void prefer_node(int64_t first, int64_t end, int node) const {
    buffer_->prefer_node(static_cast<std::size_t>(first), static_cast<std::size_t>(end), node);
  }

  // Null when borrowed.
  std::byte* mutable_data() const { return buffer_ == nullptr ? nullptr : buffer_->data(); }
  int64_t size() const { return size_; }

 private:
  std::shared_ptr<AlignedBuffer> buffer_;
  std::shared_ptr<const void> owner_;
  const std::byte* data_ = nullptr;
  int64_t size_ = 0;
};

// y = x W^T with W [N][K].
class LinearWeight {
 public:
  // Each node's memory takes the panels that its threads begin with (Session::first_item()).
  LinearWeight(int64_t out_features, int64_t in_features, Format format);
  // Mapped, on whatever node its pages are; size is checked against the layout.
  LinearWeight(int64_t out_features, int64_t in_features, Format format, WeightMemory memory);

  // Fills output columns [first, first + source.rows). Throws as pack_panels(); the columns
  // hold nothing of use then.
  void set_rows(int64_t first, const SourceMatrix& source);
  void set_rows(int64_t first, const QuantizedMatrix& source);
  void set_rows(int64_t first, const BlockMatrix& source);
  // The weights that kernels use, row-major fp32 [N][K].
  void dequantize(float* target_NK) const;

  int64_t out_features() const { return out_features_; }
  int64_t in_features() const { return in_features_; }
  Format format() const { return format_; }
  const PanelLayout& layout() const { return layout_; }
  int64_t panels() const { return panel_count(out_features_); }
  int64_t size_bytes() const { return memory_.size(); }
  const std::byte* panel(int64_t index) const {
    return memory_.data() + index * layout_.panel_bytes;
  }
  const WeightMemory& memory() const { return memory_; }

 private:
  int64_t out_features_;
  int64_t in_features_;
  Format format_;
  PanelLayout layout_;
  WeightMemory memory_;
};

// float32 is in both or in none.
struct ExpertFormats {
  Format gate_up, down;
  friend bool operator==(const ExpertFormats&, const ExpertFormats&) = default;
};

// Gate, up and down of every expert of one layer, cut into shards along the intermediate size: one
// shard per NUMA node, each a whole set of experts of its own width, whose outputs add up.
class ExpertWeights {
 public:
  static constexpr int64_t kHalf = kPanel / 2;

  // A gate/up panel holds kHalf gate columns, then the same kHalf up columns, so that one product
  // yields both operands of the activation.
  struct Shard {
    int64_t first;  // column of the intermediate size
    int64_t width;
    PanelLayout gate_up;  // K is hidden
    PanelLayout down;     // K is width
    int64_t gate_up_panels;
    int64_t down_panels;
    WeightMemory gate_up_memory;  // [experts][gate_up_panels]
    WeightMemory down_memory;     // [experts][down_panels]

    const std::byte* gate_up_panel(int64_t expert, int64_t index) const {
      return gate_up_memory.data() + (expert * gate_up_panels + index) * gate_up.panel_bytes;
    }
    const std::byte* down_panel(int64_t expert, int64_t index) const {
      return down_memory.data() + (expert * down_panels + index) * down.panel_bytes;
    }
  };

  // One shard per node of the thread pool, as far as the intermediate size reaches. Biases, when
  // present, start as zeros.
  ExpertWeights(int64_t num_experts, int64_t hidden, int64_t intermediate, ExpertFormats formats,
                bool has_bias);
  // Mapped, one shard, as LinearWeight; no biases when that memory is empty.
  ExpertWeights(int64_t num_experts, int64_t hidden, int64_t intermediate, ExpertFormats formats,
                WeightMemory gate_up, WeightMemory down, WeightMemory biases);

  // As LinearWeight::set_rows. Formats with a scale per row take that of the whole row in every
  // shard.
  void set(int64_t expert, const SourceMatrix& gate_FM, const SourceMatrix& up_FM,
           const SourceMatrix& down_MF);
  void set(int64_t expert, const QuantizedMatrix& gate_FM, const QuantizedMatrix& up_FM,
           const QuantizedMatrix& down_MF);
  void set(int64_t expert, const BlockMatrix& gate_FM, const BlockMatrix& up_FM,
           const BlockMatrix& down_MF);
  // A null pointer leaves what is there.
  void set_bias(int64_t expert, const float* gate_F, const float* up_F, const float* down_M);
  // Takes panels and biases of one of `from`'s, which has the same sizes, format and shards.
  void copy(int64_t expert, const ExpertWeights& from, int64_t from_expert);
  // Whether `copy` can take from it.
  bool lies_as(const ExpertWeights& other) const;
  void dequantize(int64_t expert, float* gate_FM, float* up_FM, float* down_MF) const;

  // The panels of one expert as a single shard holds them, and their sizes.
  void copy_panels(int64_t expert, std::byte* gate_up, std::byte* down) const;
  int64_t gate_up_bytes() const;
  int64_t down_bytes() const;

  int64_t num_experts() const { return num_experts_; }
  int64_t hidden() const { return hidden_; }
  int64_t intermediate() const { return intermediate_; }
  Format gate_up_format() const { return formats_.gate_up; }
  Format down_format() const { return formats_.down; }
  bool has_bias() const { return biases_.size() > 0; }
  std::span<const Shard> shards() const { return shards_; }
  // fp32 [intermediate], [intermediate], [hidden] of an expert; null without biases.
  const float* gate_bias(int64_t expert) const { return bias(expert, 0); }
  const float* up_bias(int64_t expert) const { return bias(expert, intermediate_); }
  const float* down_bias(int64_t expert) const { return bias(expert, 2 * intermediate_); }
  int64_t size_bytes() const;

 private:
  const float* bias(int64_t expert, int64_t offset) const {
    if (!has_bias()) return nullptr;
    return reinterpret_cast<const float*>(biases_.data()) + expert * (2 * intermediate_ + hidden_) +
           offset;
  }

  template <typename Source>
  void set_gate_up(int64_t expert, const Source& gate_FM, const Source& up_FM);
  template <typename Source>
  void set_down(int64_t expert, const Source& down_MF);

  int64_t num_experts_;
  int64_t hidden_;
  int64_t intermediate_;
  ExpertFormats formats_;
  std::vector<Shard> shards_;
  WeightMemory biases_;  // [experts][2 * intermediate + hidden] fp32, or empty
};

}  // namespace inlay::kernels
