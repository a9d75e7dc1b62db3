// Paged attention of one tile. `Vec` is the vector unit of the including ISA file.
// Included inside an anonymous namespace, after attention_product.inl.h and rows.inl.h: see
// isa/*.cpp. The order of operations is promised in attention_tile.h.
//
// All heads of a group of tokens are worked on before the next group: the heads of a token lie side
// by side in a page, so the tile reads whole pages, one after the other. Pages are scattered, which
// hardware prefetchers cannot follow, and heads one after the other are small pieces far apart: the
// next group is fetched in the order of memory while this one is worked on.

// Tokens [skip, count) of the softmax step that begins at position `begin`. Tokens before `skip`
// are outside every row's window: their pages may be gone.
struct KeyStep {
  const uint8_t* at[kKeyStep];  // keys of the first head; values lie at a fixed distance
  int64_t begin;
  int64_t skip;
  int64_t count;
};

struct AttentionScratch {
  float* keys;     // [words][kKeyGroup], transposed; then copied values, [kKeyGroup][words]
  float* queries;  // [heads * rows][query_stride], scaled
  float* scores;   // [heads * rows][kKeyStep]
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

// The tokens from `begin` on that this tile sees; none at the end of its segments. Page by page: a
// division per token would cost as much as the products.
inline void find_step(const AttentionTile& p, int64_t begin, KeyStep* step) {
  const int64_t token_bytes = p.token_stride * (p.dtype == DType::kF32 ? 4 : 2);
  const int64_t first = p.window > 0 ? p.first_position + 1 - p.window : 0;
  const int64_t context = p.first_position + p.queries;
  const int64_t end = context < p.last_segment * kSegment ? context : p.last_segment * kSegment;
  if (begin < first / kKeyStep * kKeyStep) begin = first / kKeyStep * kKeyStep;
  step->begin = begin;
  step->skip = first > begin ? first - begin : 0;
  step->count = end - begin < kKeyStep ? (end > begin ? end - begin : 0) : kKeyStep;
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
      ahead.fetch();
      ahead.fetch();
#pragma GCC unroll 16
      for (int64_t i = 0; i < kWidth; ++i) block[i] = Vec::load(source[i] + w);
      Vec::transpose(block);
      ahead.fetch();
      ahead.fetch();
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

// Scores of one row that sees something of the step to weights, where it sees something. Returns
// the factor for what the state holds so far.
inline float softmax_step(Visible visible, float* scores, float* maximum, float* total) {
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
  const float factor = before == after ? 1.0f : vec_exp(Vec::set(before - offset))[0];
  Vec::store(total, Vec::fma(Vec::load(total), Vec::set(factor), sum));
  return factor;
}

// A group of tokens of a step, for all heads: their bytes lie side by side.
struct TokenGroup {
  const KeyStep* step;
  int64_t begin;
  int64_t skip;  // first token that anybody sees
  int64_t end;
};

inline TokenGroup token_group(const KeyStep& step, int64_t begin) {
  const int64_t end = begin + kKeyGroup;
  return {&step, begin, step.skip > begin ? step.skip : begin, end < step.count ? end : step.count};
}

// Scores of a group. What `ahead` holds is fetched in even shares.
template <typename Element>
inline void score_group(const AttentionTile& p, const AttentionScratch& s, const TokenGroup& group,
                        Ahead ahead) {
  const int64_t rows = p.queries * p.group;
  const int64_t words = p.head_dim / Words<Element>::kDims;
  const int64_t count = group.end - group.begin;
  const Visible seeing = seeing_rows(p, *group.step, group.begin, group.end);
  const int64_t share = (ahead.calls() + p.heads - 1) / p.heads;
  const int64_t tiles = (seeing.end - seeing.begin + Vec::kTileRows - 1) / Vec::kTileRows;
  for (int64_t head = 0; head < p.heads; ++head) {
    const float* queries = s.queries + head * rows * s.query_stride;
    float* scores = s.scores + head * rows * kKeyStep + group.begin;
    ahead.allow(share, tiles);
    transpose_keys(group.step->at + group.begin,
                   head * p.head_stride * static_cast<int64_t>(sizeof(Element)),
                   group.skip - group.begin, count, words, s.keys, ahead);
    for_row_tiles(seeing.begin, seeing.end, [&](auto tile, int64_t row) {
      constexpr int kRows = decltype(tile)::kValue;
      constexpr int kAll = static_cast<int>(kKeyGroup) / Vec::kWidth;
      constexpr int kVecs = vecs_of(kRows) < kAll ? vecs_of(kRows) : kAll;
      for (int64_t j = 0; j < count; j += kVecs * Vec::kWidth)
        score_tile<Element, kRows, kVecs>(queries + row * s.query_stride, s.query_stride,
                                          s.keys + j, words, scores + row * kKeyStep + j, ahead);
    });
    ahead.finish();
  }
}

// Bounds the scores that a row sees. Others in the same vectors are overwritten afterwards.
inline void cap_scores(Visible visible, float softcap, float* scores) {
  constexpr int64_t kWidth = Vec::kWidth;
  const Vec::F one = Vec::set(1.0f), two = Vec::set(2.0f), cap = Vec::set(softcap);
  for (int64_t j = visible.begin / kWidth * kWidth; j < visible.end; j += kWidth) {
    const Vec::F twice = Vec::mul(Vec::div(Vec::load(scores + j), cap), two);
    // tanh(x) = 1 - 2 / (exp(2 x) + 1)
    const Vec::F tanh = Vec::sub(one, Vec::div(two, Vec::add(vec_exp(twice), one)));
    Vec::store(scores + j, Vec::mul(cap, tanh));
  }
}

// The softmax of a step, for all heads.
inline void weigh_step(const AttentionTile& p, const AttentionScratch& s, const KeyStep& step) {
  const int64_t rows = p.queries * p.group;
  const Visible seeing = seeing_rows(p, step, step.skip, step.count);
  for (int64_t head = 0; head < p.heads; ++head) {
    for (int64_t row = seeing.begin; row < seeing.end; ++row) {
      const int64_t r = head * rows + row;
      float* state = s.states + r * s.state_stride;
      const Visible visible = visible_tokens(p, step, row);
      if (p.softcap > 0) cap_scores(visible, p.softcap, s.scores + r * kKeyStep);
      const float factor = softmax_step(visible, s.scores + r * kKeyStep, state_maximum(s, state),
                                        s.totals + r * Vec::kWidth);
      if (factor == 1.0f) continue;
      for (int64_t d = 0; d < s.state_stride - 16; d += Vec::kWidth)
        Vec::store(state + d, Vec::mul(Vec::load(state + d), Vec::set(factor)));
    }
  }
}

// Rows for which values are copied first: at their place, some powers of two apart, they share so
// few sets of a cache that they push each other out before the next tile of rows reads them.
constexpr int64_t kRowsOfCopy = 12;

// Weighted values of a group. A row adds the tokens that it sees and no others: a weight of 0 would
// pass on a NaN or an infinity.
template <typename Element>
inline void add_values(const AttentionTile& p, const AttentionScratch& s, const TokenGroup& group,
                       Ahead ahead) {
  const int64_t rows = p.queries * p.group;
  const int64_t words = p.value_dim / Words<Element>::kDims;
  const KeyStep& step = *group.step;
  const Visible seeing = seeing_rows(p, step, group.begin, group.end);
  const bool copied = seeing.end - seeing.begin >= kRowsOfCopy;
  const int64_t share = (ahead.calls() + p.heads - 1) / p.heads;
  const int64_t tiles = (seeing.end - seeing.begin + Vec::kTileRows - 1) / Vec::kTileRows;
  const uint8_t* copies[kKeyStep];
  for (int64_t head = 0; head < p.heads; ++head) {
    int64_t offset =
        head * p.head_stride * static_cast<int64_t>(sizeof(Element)) + (p.v_plane - p.k_plane);
    const uint8_t* const* tokens_at = step.at;
    ahead.allow(share, tiles);
    if (copied) {
      uint8_t* to = reinterpret_cast<uint8_t*>(s.keys);
      for (int64_t t = group.skip; t < group.end; ++t, to += words * 4) {
        __builtin_memcpy(to, step.at[t] + offset, static_cast<std::size_t>(words * 4));
        copies[t] = to;
      }
      tokens_at = copies;
      offset = 0;
    }
    const auto seen = [&](int64_t row) {
      const Visible visible = visible_tokens(p, step, row);
      return Visible{visible.begin > group.skip ? visible.begin : group.skip,
                     visible.end < group.end ? visible.end : group.end};
    };
    const auto add = [&](auto tile, int64_t row, int64_t begin, int64_t end) {
      constexpr int kRows = decltype(tile)::kValue;
      constexpr int kVecs = vecs_of(kRows) / Words<Element>::kDims;
      const int64_t r = head * rows + row;
      value_columns<Element, kRows, kVecs>(s.scores + r * kKeyStep, tokens_at, offset, begin, end,
                                           0, words, s.states + r * s.state_stride, s.state_stride,
                                           ahead);
    };
    // What rows [row, end_row) see of tokens [first, last), query by query.
    const auto add_by_query = [&](int64_t row, int64_t end_row, int64_t first, int64_t last) {
      while (row < end_row) {
        const int64_t next = (row / p.group + 1) * p.group;
        const int64_t stop = next < end_row ? next : end_row;
        Visible part = seen(row);
        if (part.begin < first) part.begin = first;
        if (part.end > last) part.end = last;
        if (part.begin < part.end)
          for_row_tiles(row, stop,
                        [&](auto tile, int64_t at) { add(tile, at, part.begin, part.end); });
        row = stop;
      }
    };
    for_row_tiles(seeing.begin, seeing.end, [&](auto tile, int64_t row) {
      const int64_t end_row = row + decltype(tile)::kValue;
      const Visible first = seen(row), last = seen(end_row - 1);
      if (last.begin >= first.end) return add_by_query(row, end_row, first.begin, last.end);
      if (first.begin < last.begin) add_by_query(row, end_row, first.begin, last.begin);
      add(tile, row, last.begin, first.end);
      if (first.end < last.end) add_by_query(row, end_row, first.end, last.end);
    });
    ahead.finish();
  }
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
    float* sums = s.merged + r * s.state_stride;
    const Vec::F total = Vec::set(*state_total(s, sums));
    for (int64_t d = 0; d < s.state_stride - 16; d += kWidth)
      Vec::store(sums + d, Vec::div(Vec::load(sums + d), total));
    const int64_t head = r / rows * p.group + r % rows % p.group;
    float* out = p.out + r % rows / p.group * p.out_token_stride + head * p.out_head_stride;
    if (p.dtype == DType::kF32) {
      for (int64_t d = 0; d < p.value_dim; ++d) out[d] = sums[d];
      continue;
    }
    for (int64_t d = 0; d < p.value_dim; d += 2 * kWidth, sums += 2 * kWidth) {
      const int64_t pairs = p.value_dim - d < 2 * kWidth ? (p.value_dim - d) / 2 : kWidth;
      for (int64_t i = 0; i < pairs; ++i) {
        out[d + 2 * i] = sums[i];
        out[d + 2 * i + 1] = sums[kWidth + i];
      }
    }
  }
}

inline AttentionScratch attention_scratch(const AttentionTile& p) {
  const int64_t rows = p.heads * p.queries * p.group;
  AttentionScratch s;
  s.query_stride = (p.head_dim + 15) / 16 * 16;
  s.state_stride = attention_state_floats(p.value_dim);
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

  const int64_t token_bytes =
      (p.head_stride == 0 ? 1 : p.heads) * p.head_dim * static_cast<int64_t>(sizeof(Element));
  const auto ahead = [&](const KeyStep& step, int64_t begin, int64_t offset) {
    const TokenGroup group = token_group(step, begin);
    return Ahead(step.at, offset, group.skip, group.end, token_bytes);
  };
  const int64_t to_values = p.v_plane - p.k_plane;
  KeyStep steps[2];
  int current = 0;
  find_step(p, p.first_segment * kSegment, &steps[0]);
  for (int64_t segment = p.first_segment; segment < p.last_segment; ++segment) {
    if (p.partials != nullptr)
      s.states = p.partials + (segment - p.first_segment) * p.heads * rows * s.state_stride;
    clear_states(p, s);
    while (steps[current].begin / kSegment == segment && steps[current].count > 0) {
      const KeyStep& step = steps[current];
      KeyStep& next = steps[current ^= 1];
      find_step(p, step.begin + kKeyStep, &next);
      const int64_t first = step.skip / kKeyGroup * kKeyGroup;
      for (int64_t begin = first; begin < step.count; begin += kKeyGroup) {
        const bool last = begin + kKeyGroup >= step.count;
        score_group<Element>(
            p, s, token_group(step, begin),
            last ? ahead(step, first, to_values) : ahead(step, begin + kKeyGroup, 0));
      }
      weigh_step(p, s, step);
      for (int64_t begin = first; begin < step.count; begin += kKeyGroup) {
        const bool last = begin + kKeyGroup >= step.count;
        add_values<Element>(p, s, token_group(step, begin),
                            last ? ahead(next, next.skip / kKeyGroup * kKeyGroup, 0)
                                 : ahead(step, begin + kKeyGroup, to_values));
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
