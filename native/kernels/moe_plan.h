// What a call of moe() does, before it does it: which experts, which rows of each, cut into pieces
// for the threads.
#pragma once

#include <algorithm>
#include <cstdint>

#include "operators.h"
#include "weights.h"

namespace inlay::kernels {

// Items of a pass that every thread gets at least, where they can be cut that small. Large items
// read on for long, which memory rewards (4 instead of 24: int4:g32 gains 5 % at one token), and
// threads that the system holds up are few.
inline constexpr int64_t kItemsPerThread = 4;

// The experts of a call: shared ones, which take every token, then routed ones.
class Experts {
 public:
  explicit Experts(const Moe& p) : shared_(p.shared), routed_(p.experts) {
    if (shared_ != nullptr) num_shared_ = shared_->num_experts();
  }
  int64_t count() const { return num_shared_ + routed_->num_experts(); }
  int64_t num_shared() const { return num_shared_; }
  bool is_shared(int64_t expert) const { return expert < num_shared_; }
  const ExpertWeights& weights(int64_t expert) const {
    return is_shared(expert) ? *shared_ : *routed_;
  }
  int64_t local(int64_t expert) const { return is_shared(expert) ? expert : expert - num_shared_; }
  int64_t num_shards() const {
    const auto routed = static_cast<int64_t>(routed_->shards().size());
    return shared_ == nullptr ? routed
                              : std::max(routed, static_cast<int64_t>(shared_->shards().size()));
  }
  // Null where these weights have fewer shards.
  const ExpertWeights::Shard* shard(int64_t expert, int64_t index) const {
    const auto shards = weights(expert).shards();
    return index < static_cast<int64_t>(shards.size()) ? &shards[static_cast<std::size_t>(index)]
                                                       : nullptr;
  }
  template <typename Count>
  int64_t largest(const Count& count) const {  // over the shards of both kinds
    int64_t most = 0;
    for (const ExpertWeights* weights : {shared_, routed_})
      if (weights != nullptr)
        for (const ExpertWeights::Shard& shard : weights->shards())
          most = std::max(most, count(*weights, shard));
    return most;
  }

 private:
  const ExpertWeights* shared_;
  const ExpertWeights* routed_;
  int64_t num_shared_ = 0;
};

// The pairs of a chunk sorted by expert, then token.
struct Pairs {
  int64_t* begin;  // [experts + 1] into the pairs
  int32_t* token;  // [pairs], counted from the chunk's first token
  float* weight;   // [pairs]
};

// Sorts the pairs of tokens [first, first + tokens) whose expert runs here.
void sort_pairs(const Moe& p, const Experts& experts, int64_t first, int64_t tokens, Pairs pairs);

// Some rows of one expert in one shard.
struct Block {
  int64_t expert;
  int64_t shard;
  int64_t first_row;  // of the pairs
  int64_t end_row;
  int64_t parts_left;  // items that have not stored their columns yet; counted down atomically
};

struct Item {
  Block* block;
  int64_t first_panel;
  int64_t end_panel;
};

// Cuts the pairs of all experts into blocks of at most kMaxRows rows, even ones, in the order of
// shards, then experts. Returns how many.
int64_t cut_blocks(const Experts& experts, const Pairs& pairs, Block* blocks);

// Cuts the gate/up panels of all blocks into items: whole blocks when there are enough of them for
// all threads, else a few panels. Items follow the blocks; shard_items says how many each shard
// has.
void cut_items(const Experts& experts, Block* blocks, int64_t num_blocks, int num_threads,
               Item* items, int64_t* shard_items);

}  // namespace inlay::kernels
