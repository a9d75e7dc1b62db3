// The scratch memory of moe().
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "carver.h"
#include "moe_adapters.h"
#include "moe_plan.h"
#include "operators.h"
#include "row_packing.h"

namespace inlay::kernels {

// Down results of a decode step that are kept before they are added: 2 MiB.
constexpr int64_t kResultFloats = int64_t{1} << 19;

// The gated activations of a shard between the passes: fp32, then packed.
struct Hidden {
  float* values;  // [pairs][value_stride]
  std::byte* packed;
};

// For chunks of so many tokens. Made from null it only counts its bytes.
struct MoeMemory {
  MoeMemory(const Moe& p, const Experts& experts, int64_t chunk, const Format (&formats)[2],
            std::byte* scratch)
      : value_stride(experts.largest([](const ExpertWeights&, const ExpertWeights::Shard& s) {
          return s.gate_up_panels * ExpertWeights::kHalf;
        })),
        packed_stride(experts.largest([](const ExpertWeights&, const ExpertWeights::Shard& s) {
          return packed_bytes(s.down.format, 1, s.width);
        })) {
    const int64_t num_shards = experts.num_shards();
    max_pairs = chunk * (p.top_k + experts.num_shared());
    const int64_t max_blocks =
        num_shards * (max_pairs / kMaxRows + std::min(max_pairs, experts.count()) + 1);
    Carver carver(scratch);
    pairs = {carver.take<int64_t>(experts.count() + 1), carver.take<int32_t>(max_pairs),
             carver.take<float>(max_pairs)};
    blocks = carver.take<Block>(max_blocks);
    items = carver.take<Item>(max_blocks * (value_stride / ExpertWeights::kHalf));
    hidden = carver.take<Hidden>(num_shards);
    shard_items = carver.take<int64_t>(num_shards);
    for (int i = 0; i < 2; ++i)
      packed_x[i] = carver.take<std::byte>(packed_bytes(formats[i], chunk, p.x_TM.cols));
    for (int64_t s = 0; s < num_shards; ++s) {
      const Hidden of_shard = {carver.take<float>(max_pairs * value_stride),
                               carver.take<std::byte>(max_pairs * packed_stride)};
      if (scratch != nullptr) hidden[s] = of_shard;
    }
    partial = carver.take<float>((num_shards - 1) * chunk * p.x_TM.cols);
    results = carver.take<float>(num_shards * kResultFloats);
    low = carver.take<float>(MoeAdapters::low_floats(p, experts, max_pairs));
    bytes = carver.taken();
  }

  int64_t value_stride;   // floats
  int64_t packed_stride;  // bytes
  Pairs pairs;
  Block* blocks;
  Item* items;
  Hidden* hidden;        // [shards]
  int64_t* shard_items;  // [shards]
  std::byte* packed_x[2];
  float* partial;  // [shards - 1][chunk][hidden]
  float* results;  // [shards][kResultFloats]
  float* low;      // of adapters
  int64_t max_pairs;
  int64_t bytes;
};

}  // namespace inlay::kernels
