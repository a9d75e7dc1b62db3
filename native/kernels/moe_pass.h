// What the forward and the backward pass of a SavedMoe share: where things lie, which rows and
// columns there are, and the products.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "carver.h"
#include "moe_training.h"
#include "product_scratch.h"
#include "thread_pool.h"

namespace inlay::kernels {

// Rows of values, fp32 or bf16, for tokens or for pairs.
struct ValueRows {
  std::byte* data = nullptr;
  int64_t stride = 0;  // bytes
  bool of_tokens = false;
};

// Bytes from row to row: an odd number of cache lines (formats.h).
constexpr int64_t value_row_bytes(int64_t bytes) {
  return round_up(round_up(bytes, 64) - 64, 128) + 64;
}

// Kernels read rows of kPanel columns from any column on.
constexpr int64_t kReadBehind = kPanel * 4;

class MoePass {
 public:
  static constexpr int64_t kHalf = ExpertWeights::kHalf;
  // Of panels that are taken apart or transposed, so much of K lies in a thread's cache at a time
  // (32 KiB of bf16), and is multiplied with the rows of so many blocks.
  static constexpr int64_t kSliceK = 256;
  static constexpr std::size_t kBlocksAtOnce = 4;
  static constexpr int64_t kDecodedBytes = kPanel * kPanel * 2;  // kPanel steps of a panel, as bf16

  // At most kMaxRows pairs of one expert.
  struct RowBlock {
    int64_t expert;
    int64_t first;
    int64_t end;
    int64_t rows() const { return end - first; }
  };
  // kPanel columns of the intermediate size.
  struct Columns {
    int64_t shard;
    int64_t first;  // in the shard
    int64_t at;     // in rows
  };
  // An expert with tokens, and its row blocks.
  struct Chosen {
    int64_t expert;
    int64_t first_block;
    int64_t end_block;
  };
  // Memory of one thread.
  struct Scratch {
    Scratch(const MoePass& pass, int thread);
    std::byte* layout;  // of products
    // Of one of the blocks that are multiplied at a time.
    float* products(std::size_t block) const {
      return sums + static_cast<int64_t>(block) * kMaxRows * kPanel;
    }

    float* c[3];         // [kMaxRows][kPanel] each
    float* sums;         // [kBlocksAtOnce] as many
    std::byte* slice;    // of a panel
    std::byte* decoded;  // so much of panels that a slice takes at most, kDecodedBytes of each
    float* matrix[2];    // of a LoRA, [rank] rows
    float* grads;        // [3][rank][kPanel]
    float* low;          // [kMaxRows][rank]
    float* values;       // [kMaxRows] rows with all columns; only where inputs are dropped
  };

  MoePass(SavedMoe& saved, ThreadPool::Session& session);

  int64_t thread_floats() const;  // of a Scratch

  // fp32 rows to the operands of products, on the pool.
  void pack(ConstRows from, ValueRows to) const;
  // `from` by pair where products want rows equally far apart; else itself.
  ValueRows for_products(ValueRows from, std::byte* memory) const;
  int64_t gathered_bytes() const;
  // x with dropped features, for the matrices A of gate and up; x itself when none are dropped.
  ValueRows dropped_x(std::byte* memory) const;
  int64_t dropped_bytes() const;

  // Pointers to a block's rows, from a column on.
  void point(const ValueRows& rows, const RowBlock& block, int64_t column,
             const std::byte** pointers) const;

  // Gate and up values of all pairs, to `gate_up` and, activated, to `activated` (each may have no
  // data), and scale A x of both to `low`.
  void gate_and_up(ValueRows x, ValueRows x_dropped, ValueRows gate_up, ValueRows activated) const;

  // The rows of an expert's blocks, some at a time: multiply(blocks), then use(block, products)
  // for each, once its rows of scratch.sums hold them.
  template <typename Multiply, typename Use>
  void for_blocks(const Chosen& of, const Scratch& scratch, const Multiply& multiply,
                  const Use& use) const {
    const std::span<const RowBlock> all = blocks_of(of);
    for (std::size_t first = 0; first < all.size(); first += kBlocksAtOnce) {
      const auto some = all.subspan(first, std::min(all.size() - first, kBlocksAtOnce));
      multiply(some);
      for (std::size_t b = 0; b < some.size(); ++b) use(some[b], scratch.products(b));
    }
  }
  // Columns [column, column + k) of the blocks' rows times a panel, to their products or added to
  // them.
  void multiply(std::span<const RowBlock> some, ValueRows values, int64_t column,
                const std::byte* panel, int64_t k, int64_t cols, bool add, Fetch next,
                const Scratch& scratch) const;
  // The same with a packed panel, which is taken apart slice by slice where products want that.
  void multiply_packed(std::span<const RowBlock> some, ValueRows values, int64_t column,
                       const std::byte* panel, const PanelLayout& layout, int64_t k, int64_t cols,
                       Fetch next, const Scratch& scratch) const;
  // What that reads first.
  Fetch head_of(const std::byte* panel, const PanelLayout& layout) const;

  // Steps [first, first + kPanel) of a packed panel as far as there are any, in place or taken
  // apart.
  const std::byte* steps_of(const std::byte* panel, const PanelLayout& layout, int64_t k,
                            int64_t first, std::byte* decoded) const;
  // These steps of some columns, transposed.
  void transpose(const std::byte* steps, const PanelLayout& layout, int64_t first, int64_t column,
                 int64_t columns, std::byte* out) const;
  // Steps [first, first + count) of consecutive panels, to be fetched.
  Fetch fetch_of(const std::byte* panels, int64_t num_panels, const PanelLayout& layout,
                 int64_t first, int64_t count) const;

  // out[rank][count] = in[count][rank]
  void transpose_matrix(const float* in, int64_t count, float* out) const;
  // c += low * matrix, with the features of `stream` from `first` on dropped; matrix is
  // [rank][kPanel].
  void add_dropped(const RowBlock& block, uint64_t stream, int64_t first, const float* low,
                   const float* matrix, float* c, float* other) const;

  float* low(int which, int64_t pair) const {
    return reinterpret_cast<float*>(saved.low_.data()) +
           (which * pairs.count() + pair) * saved.lora_.rank;
  }
  const float* matrix(LoraMatrix which, int64_t expert) const {
    return saved.lora_.matrices[static_cast<std::size_t>(which)] + expert * matrix_size(which);
  }
  int64_t matrix_size(LoraMatrix which) const {
    return saved.lora_.rank *
           (which == kGateA || which == kUpA || which == kDownB ? hidden : weights.intermediate());
  }
  std::span<const RowBlock> blocks_of(const Chosen& chosen) const {
    return std::span(blocks).subspan(
        static_cast<std::size_t>(chosen.first_block),
        static_cast<std::size_t>(chosen.end_block - chosen.first_block));
  }
  const ExpertWeights::Shard& shard(int64_t index) const {
    return weights.shards()[static_cast<std::size_t>(index)];
  }
  int64_t bytes_of(int64_t values) const { return values * element; }

  SavedMoe& saved;
  ThreadPool::Session& session;
  const KernelTable& table;
  const ExpertWeights& weights;
  const ChosenPairs& pairs;
  const Format format;  // of products
  const DType dtype;
  const int64_t element;  // bytes
  const int64_t hidden;
  int64_t wide = 0;     // the intermediate size in rows: each shard begins with a whole Columns
  int64_t x_stride;     // bytes of rows with the hidden size,
  int64_t h_stride;     // with the intermediate size,
  int64_t pair_stride;  // and with twice that, gate then up
  bool has_lora;
  std::vector<int64_t> shard_at;  // where each shard begins in rows
  std::vector<RowBlock> blocks;
  std::vector<Chosen> chosen;
  std::vector<Columns> columns;
};

// Products of training run in this format.
inline Format training_format(const ExpertWeights& weights) {
  const bool floats =
      weights.gate_up_format() == Format::kF32 && weights.down_format() == Format::kF32;
  return floats ? Format::kF32 : Format::kBf16;
}

}  // namespace inlay::kernels
