// Contract of the attention leaf kernels; part of kernel_table.h.
//
// A query's result is a fixed sequence of operations on its own row: scores accumulate over the
// head dimension, weighted values over the tokens that it sees, both ascending with one
// multiply-add per step; nothing of other tokens enters, not even a NaN; the softmax runs online
// over steps of kKeyStep tokens inside segments of kSegment tokens; the segments' results are
// merged in ascending order, after the sink. Steps and segments begin at multiples of their length
// in the sequence. Tiles, chunks, threads and the other sequences of a call therefore never change
// a bit.
#pragma once

#include <cstddef>
#include <cstdint>

namespace inlay::kernels {

enum class DType : int32_t { kF32 = 0, kBf16 = 1 };

// Tokens per softmax step: long enough that its horizontal maximum and the rescaling of the sums
// are a few percent of a decode.
constexpr int64_t kKeyStep = 256;

// Tokens whose keys are transposed together: 32 KiB in fp32 at head_dim 128.
constexpr int64_t kKeyGroup = 64;

// Tokens that are attended to without a look at other segments: long contexts are spread over
// threads by segments.
constexpr int64_t kSegment = 1024;

// Query rows (queries x heads) of a tile: enough to spread the cost of transposing keys, few enough
// that queries, scores and sums stay in L2.
constexpr int64_t kMaxAttentionRows = 96;

// Consecutive key/value heads with their groups of query heads, a run of consecutive queries of one
// sequence, and a range of segments.
struct AttentionTile {
  const float* q;
  int64_t q_token_stride;
  int64_t q_head_stride;
  float* out;
  int64_t out_token_stride;
  int64_t out_head_stride;
  int64_t heads;
  int64_t queries;
  int64_t group;     // query heads per key/value head; heads * queries * group <= kMaxAttentionRows
  int64_t head_dim;  // even
  int64_t value_dim;
  int64_t head_stride;  // elements of a plane from a key/value head to the next; 0: one for all
  int64_t first_position;
  int64_t window;  // 0: unlimited
  float scale;
  const float* sinks;      // [heads * group] or null
  float softcap;           // of scores; 0: none
  const uint8_t* k_plane;  // this layer's plane of the first head in page 0
  const uint8_t* v_plane;
  int64_t page_bytes;
  int64_t page_tokens;
  int64_t token_stride;  // elements between tokens of a plane
  const int32_t* page_table;
  DType dtype;
  int64_t first_segment;
  int64_t last_segment;  // exclusive
  float* partials;       // [segments][heads * queries * group][attention_state_floats]; null: all
                         // segments are merged and go to `out`
  float* scratch;        // attention_scratch_floats(), 64-byte aligned
};

// A row's state: weighted sums of the values (in the ISA's own order), the maximum of the scores,
// the sum of the softmax.
constexpr int64_t attention_state_floats(int64_t head_dim) {
  return (head_dim + 31) / 32 * 32 + 16;
}

// Keys of a group; per row the scaled query, the scores, a segment's and the merged state, and
// partial sums of the softmax per lane.
constexpr int64_t attention_scratch_floats(int64_t head_dim) {
  return kKeyGroup * head_dim +
         kMaxAttentionRows * (head_dim + 16 + kKeyStep + 2 * attention_state_floats(head_dim) + 16);
}

}  // namespace inlay::kernels
