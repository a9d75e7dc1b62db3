// LoRA adapters beside packed weights: what they add to the products of some rows, scale B (A x),
// in fp32. Matrices are copied; every adapter has memory of its own. Those whose values are all
// bf16 are held as such, which halves what a decode step reads, and gives the same bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <vector>

#include "kernel_table.h"
#include "operators.h"

namespace inlay::kernels {

struct FreeAligned {
  void operator()(std::byte* memory) const { ::operator delete[](memory, std::align_val_t{64}); }
};
using AlignedBytes = std::unique_ptr<std::byte[], FreeAligned>;

struct LowRankMatrix {
  const std::byte* at(int64_t value) const { return data + value * (dtype == DType::kF32 ? 4 : 2); }

  const std::byte* data = nullptr;
  DType dtype = DType::kF32;
};

// One pair: A [rank][in], and B [out][rank] in panels of kPanels rows, each [rank][kPanels], padded
// with zeros to a whole kPanel of rows.
struct LowRank {
  static constexpr int64_t kPanels = kPanel / 2;

  const std::byte* b_panel(int64_t row) const { return b.at(row / kPanels * rank * kPanels); }

  int64_t rank = 0;  // 0: adds nothing
  float scale = 0;
  LowRankMatrix a;
  LowRankMatrix b;
};

// A pair as its caller has it: A [rank][in] and B [out][rank], contiguous.
struct LowRankSource {
  const float* a;
  const float* b;
  int64_t rank;
  int64_t in;
  int64_t out;
  float scale;
};

// What an adapter adds to a linear layer, part by part: each takes some columns of x, and adds to
// some of the output that no other part adds to.
class LinearAdapter {
 public:
  struct Source {
    int64_t x_column;
    int64_t out_column;
    LowRankSource matrices;
  };
  struct Part {
    int64_t x_column;
    int64_t out_column;
    int64_t in;
    int64_t out;
    LowRank matrices;
  };

  // A matrix that several parts have at the same address is kept once.
  explicit LinearAdapter(std::span<const Source> sources);
  LinearAdapter(const LinearAdapter&) = delete;
  LinearAdapter& operator=(const LinearAdapter&) = delete;

  std::span<const Part> parts() const { return parts_; }
  int64_t x_columns() const { return x_columns_; }  // that x has at least
  int64_t out_columns() const { return out_columns_; }
  int64_t max_rank() const { return max_rank_; }
  int64_t size_bytes() const { return size_bytes_; }

 private:
  std::vector<Part> parts_;
  std::vector<AlignedBytes> memory_;
  int64_t x_columns_ = 0;
  int64_t out_columns_ = 0;
  int64_t max_rank_ = 0;
  int64_t size_bytes_ = 0;
};

// What an adapter adds to the matrices of a layer's experts; nothing where none was set.
class ExpertAdapter {
 public:
  enum Matrix : int { kGate, kUp, kDown, kMatrices };

  ExpertAdapter(int64_t num_experts, int64_t hidden, int64_t intermediate);
  ExpertAdapter(const ExpertAdapter&) = delete;
  ExpertAdapter& operator=(const ExpertAdapter&) = delete;

  // Not while a call uses it. The shapes are the experts'.
  void set(int64_t expert, Matrix which, const LowRankSource& source);

  int64_t num_experts() const { return static_cast<int64_t>(pairs_.size()) / kMatrices; }
  int64_t hidden() const { return hidden_; }
  int64_t intermediate() const { return intermediate_; }
  int64_t max_rank() const { return max_rank_; }
  int64_t size_bytes() const { return size_bytes_; }
  const LowRank& pair(int64_t expert, Matrix which) const {
    return pairs_[static_cast<std::size_t>(expert * kMatrices + which)];
  }

 private:
  std::vector<LowRank> pairs_;
  std::vector<AlignedBytes> memory_;
  std::vector<int64_t> pair_bytes_;
  int64_t hidden_;
  int64_t intermediate_;
  int64_t max_rank_ = 0;
  int64_t size_bytes_ = 0;
};

// Rows [first, end) of a call, which an adapter adds to.
struct LinearRows {
  const LinearAdapter* adapter;
  int64_t first;
  int64_t end;
};

// out += scale B (A x) of the adapters' rows, which are apart.
void add_adapters(ConstRows x_TK, std::span<const LinearRows> rows, Rows out_TN);

}  // namespace inlay::kernels
