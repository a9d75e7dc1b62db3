// Paged attention of one tile. `Vec` is the vector unit of the including ISA file.
// Included inside an anonymous namespace, after attention_product.inl.h and rows.inl.h: see
// isa/*.cpp. The order of operations is promised in attention_tile.h.
//
// Heads are the inner loop: the heads of a token lie side by side in a page, so their bytes are
// read close in time. Pages are scattered, which hardware prefetchers cannot follow: the values of
// a step are fetched while its keys are worked on, and the keys of the next step (or head) while
// the values are.

// Tokens [skip, count) of the softmax step that begins at position `begin`. Tokens before `skip`
// are outside every row's window: their pages may be gone.
struct KeyStep {
  const uint8_t* at[kKeyStep];  // keys of the first head; values lie at a fixed distance
  int64_t begin;
  int64_t skip;
  int64_t count;
};

struct AttentionScratch {
  float* keys;     // [words][kKeyGroup], transposed
  float* queries;  // [heads * rows][query_stride], scaled
  float* scores;   // [rows][kKeyStep]
  float* states;   // [heads * rows][state_stride]: sums, then the maximum and the softmax's sum
  float* merged;   // [heads * rows][state_stride]
  float* totals;   // [heads * rows][kWidth] partial sums of the softmax
  int64_t query_stride;
  int64_t state_stride;
};

inline float* state_maximum(const AttentionScratch& s, float* state) {
  return state + s.state_stride - 16;
}
inline float* state_total(const AttentionScratch& s, float* state) {
  return state + s.state_stride - 15;
}

// Page by page: a division per token would cost as much as the products.
inline void find_tokens(const AttentionTile& p, int64_t begin, int64_t first, int64_t end,
                        KeyStep* step) {
  const int64_t token_bytes = p.token_stride * (p.dtype == DType::kF32 ? 4 : 2);
  step->begin = begin;
  step->skip = first > begin ? first - begin : 0;
  step->count = end - begin < kKeyStep ? end - begin : kKeyStep;
  int64_t t = step->skip;
  while (t < step->count) {
    const int64_t page = (begin + t) / p.page_tokens;
    const int64_t page_end = (page + 1) * p.page_tokens - begin;
    const uint8_t* key = p.k_plane + p.page_table[page] * p.page_bytes +
                         (begin + t - page * p.page_tokens) * token_bytes;
    const int64_t stop = page_end < step->count ? page_end : step->count;
    for (; t < stop; ++t, key += token_bytes) step->at[t] = key;
  }
}

// Keys of tokens [skip, count) to columns of [words][kKeyGroup]. Columns beside them repeat the
// nearest key: nothing sees their scores.
inline void transpose_keys(const uint8_t* const* tokens_at, int64_t offset, int64_t skip,
                           int64_t count, int64_t words, float* keys, Ahead& ahead) {
  constexpr int64_t kWidth = Vec::kWidth;
  for (int64_t t = skip / kWidth * kWidth; t < count; t += kWidth) {
    const float* source[kWidth];
    for (int64_t i = 0; i < kWidth; ++i) {
      const int64_t token = t + i < skip ? skip : t + i < count ? t + i : count - 1;
      source[i] = reinterpret_cast<const float*>(tokens_at[token] + offset);
    }
    Vec::F block[kWidth];
    int64_t w = 0;
    for (; w + kWidth <= words; w += kWidth) {
      ahead.fetch(2);
#pragma GCC unroll 16
      for (int64_t i = 0; i < kWidth; ++i) block[i] = Vec::load(source[i] + w);
      Vec::transpose(block);
#pragma GCC unroll 16
      for (int64_t i = 0; i < kWidth; ++i) Vec::store(keys + (w + i) * kKeyGroup + t, block[i]);
    }
    if (w == words) continue;
    for (int64_t i = 0; i < kWidth; ++i) block[i] = Vec::load_first(source[i] + w, words - w);
    Vec::transpose(block);
    for (int64_t i = 0; w + i < words; ++i) Vec::store(keys + (w + i) * kKeyGroup + t, block[i]);
  }
}

// Where the softmax of a row begins and ends inside a step.
struct Visible {
  int64_t begin;
  int64_t end;
};
inline Visible visible_tokens(const AttentionTile& p, const KeyStep& step, int64_t row) {
  const int64_t position = p.first_position + row / p.group;
  const int64_t end = position + 1 - step.begin;
  const int64_t begin = p.window > 0 ? end - p.window : 0;
  return {begin > 0 ? begin : 0, end < step.count ? end : step.count};
}

// Rows that see any token of the step in [begin, end): the first and one past the last.
inline Visible seeing_rows(const AttentionTile& p, const KeyStep& step, int64_t begin,
                           int64_t end) {
  int64_t first = step.begin + begin - p.first_position;
  int64_t last = p.window > 0 ? step.begin + end - 1 + p.window - p.first_position : p.queries;
  if (first < 0) first = 0;
  if (last > p.queries) last = p.queries;
  return {first * p.group, last * p.group};
}

// Scores of one row that sees something of the step to weights, 0 where it sees nothing. Returns
// the factor for what the state holds so far.
inline float softmax_step(const KeyStep& step, Visible visible, float* scores, float* maximum,
                          float* total) {
  constexpr int64_t kWidth = Vec::kWidth;
  const int64_t begin = visible.begin / kWidth * kWidth;
  const int64_t end = (visible.end + kWidth - 1) / kWidth * kWidth;
  for (int64_t j = begin; j < visible.begin; ++j) scores[j] = -__builtin_inff();
  for (int64_t j = visible.end; j < end; ++j) scores[j] = -__builtin_inff();
  Vec::F largest = Vec::load(scores + begin);
  for (int64_t j = begin + kWidth; j < end; j += kWidth)
    largest = Vec::max(largest, Vec::load(scores + j));
  const float before = *maximum;
  const float step_max = Vec::largest(largest);
  const float after = step_max > before ? step_max : before;
  *maximum = after;
  // All scores so far may be -inf; their weights are 0.
  const float offset = after == -__builtin_inff() ? 0.0f : after;
  Vec::F sum = Vec::zero();
  for (int64_t j = begin; j < end; j += kWidth) {
    const Vec::F e = vec_exp(Vec::sub(Vec::load(scores + j), Vec::set(offset)));
    Vec::store(scores + j, e);
    sum = Vec::add(sum, e);
  }
  for (int64_t j = 0; j < begin; ++j) scores[j] = 0;
  for (int64_t j = end; j < step.count; ++j) scores[j] = 0;
  const float factor = before == after ? 1.0f : vec_exp(Vec::set(before - offset))[0];
  Vec::store(total, Vec::fma(Vec::load(total), Vec::set(factor), sum));
  return factor;
}

// One head's share of a step. `next_keys` are fetched while the values are worked on.
template <typename Element>
inline void attend_step(const AttentionTile& p, const AttentionScratch& s, const KeyStep& step,
                        int64_t head, Ahead next_keys) {
  const int64_t rows = p.queries * p.group;
  const int64_t words = p.head_dim / Words<Element>::kDims;
  const int64_t offset = head * words * 4;
  const int64_t value_offset = offset + (p.v_plane - p.k_plane);
  const float* queries = s.queries + head * rows * s.query_stride;
  float* states = s.states + head * rows * s.state_stride;
  Ahead values = {step.at, value_offset, words * 4, step.skip, step.count};
  for (int64_t begin = step.skip / kKeyGroup * kKeyGroup; begin < step.count; begin += kKeyGroup) {
    const int64_t skip = step.skip > begin ? step.skip - begin : 0;
    const int64_t count = step.count - begin < kKeyGroup ? step.count - begin : kKeyGroup;
    transpose_keys(step.at + begin, offset, skip, count, words, s.keys, values);
    const Visible seeing = seeing_rows(p, step, begin, begin + count);
    for_row_tiles(seeing.begin, seeing.end, [&](auto tile, int64_t row) {
      constexpr int kRows = decltype(tile)::kValue;
      constexpr int kAll = static_cast<int>(kKeyGroup) / Vec::kWidth;
      constexpr int kVecs = vecs_of(kRows) < kAll ? vecs_of(kRows) : kAll;
      for (int64_t j = 0; j < count; j += kVecs * Vec::kWidth)
        score_tile<Element, kRows, kVecs>(queries + row * s.query_stride, s.query_stride,
                                          s.keys + j, words, s.scores + row * kKeyStep + begin + j,
                                          values);
    });
  }
  const Visible seeing = seeing_rows(p, step, step.skip, step.count);
  for (int64_t row = seeing.begin; row < seeing.end; ++row) {
    float* state = states + row * s.state_stride;
    const float factor =
        softmax_step(step, visible_tokens(p, step, row), s.scores + row * kKeyStep,
                     state_maximum(s, state), s.totals + (head * rows + row) * Vec::kWidth);
    if (factor == 1.0f) continue;
    for (int64_t d = 0; d < s.state_stride - 16; d += Vec::kWidth)
      Vec::store(state + d, Vec::mul(Vec::load(state + d), Vec::set(factor)));
  }
  for_row_tiles(seeing.begin, seeing.end, [&](auto tile, int64_t row) {
    constexpr int kRows = decltype(tile)::kValue;
    constexpr int kVecs = vecs_of(kRows) / Words<Element>::kDims;
    value_columns<Element, kRows, kVecs>(s.scores + row * kKeyStep, step.at, value_offset,
                                         visible_tokens(p, step, row).begin,
                                         visible_tokens(p, step, row + kRows - 1).end, 0, words,
                                         states + row * s.state_stride, s.state_stride, next_keys);
  });
}

inline void clear_states(const AttentionTile& p, const AttentionScratch& s) {
  const int64_t rows = p.heads * p.queries * p.group;
  __builtin_memset(s.states, 0, static_cast<std::size_t>(rows * s.state_stride) * sizeof(float));
  __builtin_memset(s.totals, 0, static_cast<std::size_t>(rows * Vec::kWidth) * sizeof(float));
  for (int64_t r = 0; r < rows; ++r)
    *state_maximum(s, s.states + r * s.state_stride) = -__builtin_inff();
}

// The softmax's lanes to one sum; the states are then those of whole segments.
inline void finish_states(const AttentionTile& p, const AttentionScratch& s) {
  for (int64_t r = 0; r < p.heads * p.queries * p.group; ++r)
    *state_total(s, s.states + r * s.state_stride) =
        Vec::sum(Vec::load(s.totals + r * Vec::kWidth));
}

// Before the first segment: nothing, or the sink as a score without a value.
inline void begin_merge(const AttentionTile& p, const AttentionScratch& s) {
  const int64_t rows = p.queries * p.group;
  __builtin_memset(s.merged, 0,
                   static_cast<std::size_t>(p.heads * rows * s.state_stride) * sizeof(float));
  for (int64_t r = 0; r < p.heads * rows; ++r) {
    float* state = s.merged + r * s.state_stride;
    const float sink =
        p.sinks == nullptr ? -__builtin_inff() : p.sinks[r / rows * p.group + r % rows % p.group];
    *state_maximum(s, state) = sink;
    *state_total(s, state) = sink == -__builtin_inff() ? 0.0f : 1.0f;
  }
}

// A row without a token in the segment changes nothing: its factor is 0, the other's 1.
inline void merge_states(const AttentionTile& p, const AttentionScratch& s, float* states) {
  for (int64_t r = 0; r < p.heads * p.queries * p.group; ++r) {
    float* to = s.merged + r * s.state_stride;
    float* from = states + r * s.state_stride;
    const float a = *state_maximum(s, to), b = *state_maximum(s, from);
    const float largest = a > b ? a : b;
    const float offset = largest == -__builtin_inff() ? 0.0f : largest;
    const Vec::F keep = vec_exp(Vec::set(a - offset)), add = vec_exp(Vec::set(b - offset));
    for (int64_t d = 0; d < s.state_stride - 16; d += Vec::kWidth)
      Vec::store(to + d, Vec::fma(Vec::load(to + d), keep, Vec::mul(Vec::load(from + d), add)));
    const Vec::F total = Vec::fma(Vec::set(*state_total(s, to)), keep,
                                  Vec::mul(Vec::set(*state_total(s, from)), add));
    *state_total(s, to) = total[0];
    *state_maximum(s, to) = largest;
  }
}

inline void write_results(const AttentionTile& p, const AttentionScratch& s) {
  constexpr int64_t kWidth = Vec::kWidth;
  const int64_t rows = p.queries * p.group;
  for (int64_t r = 0; r < p.heads * rows; ++r) {
    const float* sums = s.merged + r * s.state_stride;
    const float total = *state_total(s, s.merged + r * s.state_stride);
    const int64_t head = r / rows * p.group + r % rows % p.group;
    float* out = p.out + r % rows / p.group * p.out_token_stride + head * p.out_head_stride;
    for (int64_t d = 0; d < p.head_dim; ++d)
      out[d] = (p.dtype == DType::kF32
                    ? sums[d]
                    : sums[d / (2 * kWidth) * (2 * kWidth) + d % 2 * kWidth + d / 2 % kWidth]) /
               total;
  }
}

inline AttentionScratch attention_scratch(const AttentionTile& p) {
  const int64_t rows = p.heads * p.queries * p.group;
  AttentionScratch s;
  s.query_stride = (p.head_dim + 15) / 16 * 16;
  s.state_stride = attention_state_floats(p.head_dim);
  s.states = p.scratch;
  s.merged = s.states + rows * s.state_stride;
  s.totals = s.merged + rows * s.state_stride;
  s.queries = s.totals + rows * 16;
  s.scores = s.queries + rows * s.query_stride;
  s.keys = s.scores + rows * kKeyStep;
  return s;
}

template <typename Element>
inline void attend(const AttentionTile& p) {
  AttentionScratch s = attention_scratch(p);
  const int64_t rows = p.queries * p.group;
  for (int64_t r = 0; r < p.heads * rows; ++r) {
    const int64_t head = r / rows * p.group + r % rows % p.group;
    const float* q = p.q + r % rows / p.group * p.q_token_stride + head * p.q_head_stride;
    for (int64_t d = 0; d < p.head_dim; ++d) s.queries[r * s.query_stride + d] = q[d] * p.scale;
  }
  if (p.partials == nullptr) begin_merge(p, s);

  const int64_t seen = p.window > 0 ? p.first_position + 1 - p.window : 0;
  const int64_t context = p.first_position + p.queries;
  const int64_t head_bytes = p.head_dim * static_cast<int64_t>(sizeof(Element));
  KeyStep steps[2];
  int current = 0;
  for (int64_t segment = p.first_segment; segment < p.last_segment; ++segment) {
    const int64_t segment_end = (segment + 1) * kSegment;
    const int64_t end = context < segment_end ? context : segment_end;
    const int64_t first = seen > segment * kSegment ? seen : segment * kSegment;
    if (p.partials != nullptr)
      s.states = p.partials + (segment - p.first_segment) * p.heads * rows * s.state_stride;
    clear_states(p, s);
    int64_t begin = first / kKeyStep * kKeyStep;
    if (begin < end) find_tokens(p, begin, first, end, &steps[current]);
    for (; begin < end; begin += kKeyStep, current ^= 1) {
      const KeyStep& step = steps[current];
      KeyStep& next = steps[current ^ 1];
      next.skip = next.count = 0;
      if (begin + kKeyStep < end) find_tokens(p, begin + kKeyStep, first, end, &next);
      for (int64_t head = 0; head < p.heads; ++head) {
        const bool last = head + 1 == p.heads;
        const KeyStep& fetched = last ? next : step;
        attend_step<Element>(p, s, step, head,
                             {fetched.at, last ? 0 : (head + 1) * head_bytes, head_bytes,
                              fetched.skip, fetched.count});
      }
    }
    finish_states(p, s);
    if (p.partials == nullptr) merge_states(p, s, s.states);
  }
  if (p.partials == nullptr) write_results(p, s);
}

void attention_tile(const AttentionTile& p) {
  if (p.dtype == DType::kF32)
    attend<float>(p);
  else
    attend<uint16_t>(p);
}

void merge_attention(const AttentionTile& p) {
  const AttentionScratch s = attention_scratch(p);
  begin_merge(p, s);
  for (int64_t segment = p.first_segment; segment < p.last_segment; ++segment)
    merge_states(
        p, s,
        p.partials + (segment - p.first_segment) * p.heads * p.queries * p.group * s.state_stride);
  write_results(p, s);
}
