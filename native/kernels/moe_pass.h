// What the forward and the backward pass of a SavedMoe share: where things lie, which rows and
// columns there are, and the products.
#pragma once

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
    std::byte* layout;
    float* c[4];         // results of products, [kMaxRows][kPanel] each
    std::byte* panel;    // one panel of a product
    std::byte* decoded;  // kPanel steps of one
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

  // A panel as products read it, in place or taken apart.
  const std::byte* usable(const std::byte* panel, int64_t k, const Scratch& scratch) const;
  // Steps [first, first + kPanel) of some columns of a panel of inner size k, transposed.
  void transpose(const std::byte* panel, int64_t k, int64_t first, int64_t column, int64_t columns,
                 const Scratch& scratch, std::byte* out) const;
  // What transpose() reads of consecutive panels, to be fetched.
  Fetch steps_of(const std::byte* panels, int64_t count, const PanelLayout& layout,
                 int64_t first) const;
  void product(const std::byte* const* rows, int64_t count, const std::byte* panel, int64_t k,
               int64_t cols, float* c, const Scratch& scratch, Fetch next = {}) const;

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
constexpr Format training_format(Format format) {
  return format == Format::kF32 ? Format::kF32 : Format::kBf16;
}

}  // namespace inlay::kernels
