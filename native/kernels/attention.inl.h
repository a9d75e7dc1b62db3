// Paged attention of one tile. `Vec` is the vector unit of the including ISA file.
// Included inside an anonymous namespace, after attention_product.inl.h and rows.inl.h: see
// isa/*.cpp.
//
// Per key block of kKeyBlock tokens: keys are transposed to [D][kKeyBlock] and values copied to
// [tokens][kPanel] panels, both fp32, so that scores and weighted values are the same panel
// products that linear layers use. A score is one accumulator over D, a weighted value one
// accumulator over the tokens, both ascending: a query alone gives the same bits as in a tile.

struct AttentionScratch {
  float* keys;     // [D][kKeyBlock]
  float* values;   // [panels][kKeyBlock][kPanel]
  float* queries;  // [rows][query_stride], scaled
  float* scores;   // [rows][kKeyBlock]
  float* sums;     // [rows][panels][kPanel] as [panels][rows][kPanel]
  float* totals;   // [rows][16] partial sums of the softmax
  float* maxima;   // [rows]
  int64_t query_stride;
};

template <typename Element>
inline Vec::F load_element(const Element* p, int64_t n) {
  if constexpr (sizeof(Element) == 4)
    return n >= Vec::kWidth ? Vec::load(p) : Vec::load_first(p, n);
  else
    return n >= Vec::kWidth ? Vec::load_bf16(p) : Vec::load_bf16_first(p, n);
}

// Keys of tokens [skip, tokens) of a key block, found page by page: a division per token would cost
// as much as the products. A token's values lie at the same distance from its keys everywhere.
inline void find_tokens(const AttentionTile& p, int64_t begin, int64_t skip, int64_t tokens,
                        const uint8_t** keys) {
  const int64_t token_bytes = p.token_stride * (p.dtype == DType::kF32 ? 4 : 2);
  int64_t t = skip;
  while (t < tokens) {
    const int64_t page = (begin + t) / p.page_tokens;
    const int64_t page_end = (page + 1) * p.page_tokens - begin;
    const uint8_t* key = p.k_plane + p.page_table[page] * p.page_bytes +
                         (begin + t - page * p.page_tokens) * token_bytes;
    const int64_t end = page_end < tokens ? page_end : tokens;
    for (; t < end; ++t, key += token_bytes) keys[t] = key;
  }
}

template <typename Element>
inline void transpose_keys(const AttentionTile& p, const uint8_t* const* tokens_at, int64_t skip,
                           int64_t tokens, float* keys) {
  constexpr int64_t kWidth = Vec::kWidth;
  for (int64_t t = skip / kWidth * kWidth; t < tokens; t += kWidth) {
    const Element* source[kWidth];
    for (int64_t i = 0; i < kWidth; ++i)
      source[i] = t + i >= skip && t + i < tokens
                      ? reinterpret_cast<const Element*>(tokens_at[t + i])
                      : nullptr;
    for (int64_t d = 0; d < p.head_dim; d += kWidth) {
      const int64_t n = p.head_dim - d;
      Vec::F block[kWidth];
      for (int64_t i = 0; i < kWidth; ++i)
        block[i] = source[i] != nullptr ? load_element(source[i] + d, n) : Vec::zero();
      Vec::transpose(block);
      const int64_t rows = n < kWidth ? n : kWidth;
      for (int64_t i = 0; i < rows; ++i) Vec::store(keys + (d + i) * kKeyBlock + t, block[i]);
    }
  }
}

template <typename Element>
inline void copy_values(const AttentionTile& p, const uint8_t* const* tokens_at, int64_t skip,
                        int64_t tokens, float* values) {
  const int64_t distance = p.v_plane - p.k_plane;
  for (int64_t t = skip; t < tokens; ++t) {
    const Element* source = reinterpret_cast<const Element*>(tokens_at[t] + distance);
    for (int64_t d = 0; d < p.head_dim; d += Vec::kWidth)
      Vec::store(values + (d / kPanel * kKeyBlock + t) * kPanel + d % kPanel,
                 load_element(source + d, p.head_dim - d));
  }
}

// Scores of one row to probabilities, with the running maximum and sums of the online softmax.
// Returns the factor for what was accumulated so far.
inline float softmax_step(float* scores, float* maximum, float* total) {
  constexpr int kVecs = static_cast<int>(kKeyBlock) / Vec::kWidth;
  Vec::F largest = Vec::load(scores);
  for (int v = 1; v < kVecs; ++v) largest = Vec::max(largest, Vec::load(scores + v * Vec::kWidth));
  const float before = *maximum;
  const float block_max = Vec::largest(largest);
  const float after = block_max > before ? block_max : before;
  *maximum = after;
  // A row whose window has not begun has only -inf so far; its probabilities are 0.
  const float offset = after == -__builtin_inff() ? 0.0f : after;
  Vec::F sum = Vec::zero();
  for (int v = 0; v < kVecs; ++v) {
    const Vec::F e = vec_exp(Vec::sub(Vec::load(scores + v * Vec::kWidth), Vec::set(offset)));
    Vec::store(scores + v * Vec::kWidth, e);
    sum = Vec::add(sum, e);
  }
  float factor = 1.0f;
  if (before != after) {
    float lanes[Vec::kWidth];
    Vec::store(lanes, vec_exp(Vec::set(before - offset)));
    factor = lanes[0];
  }
  Vec::store(total, Vec::fma(Vec::load(total), Vec::set(factor), sum));
  return factor;
}

// Tokens [skip, tokens) of the block that begins at absolute position `begin`. Tokens before `skip`
// are outside every row's window: their pages may be gone.
inline void attend_block(const AttentionTile& p, const AttentionScratch& s, int64_t begin,
                         int64_t skip, int64_t tokens) {
  const int64_t rows = p.queries * p.group;
  const int64_t panels = (p.head_dim + kPanel - 1) / kPanel;
  const uint8_t* tokens_at[kKeyBlock];
  find_tokens(p, begin, skip, tokens, tokens_at);
  if (p.dtype == DType::kF32) {
    transpose_keys<float>(p, tokens_at, skip, tokens, s.keys);
    copy_values<float>(p, tokens_at, skip, tokens, s.values);
  } else {
    transpose_keys<uint16_t>(p, tokens_at, skip, tokens, s.keys);
    copy_values<uint16_t>(p, tokens_at, skip, tokens, s.values);
  }
  const float* x_rows[kMaxRows];
  for (int64_t r = 0; r < rows; ++r) x_rows[r] = s.queries + r * s.query_stride;
  rows_over_slice(x_rows, rows, 0, p.head_dim, s.keys, s.scores, tokens, false);
  for (int64_t r = 0; r < rows; ++r) {
    float* scores = s.scores + r * kKeyBlock;
    const int64_t position = p.first_position + r / p.group;
    int64_t end = position + 1 - begin;
    if (end > tokens) end = tokens;
    int64_t start = p.window > 0 ? position + 1 - p.window - begin : 0;
    if (start < 0) start = 0;
    for (int64_t j = 0; j < start && j < kKeyBlock; ++j) scores[j] = -__builtin_inff();
    for (int64_t j = end < 0 ? 0 : end; j < kKeyBlock; ++j) scores[j] = -__builtin_inff();
    const float factor = softmax_step(scores, s.maxima + r, s.totals + r * 16);
    x_rows[r] = scores;
    if (factor == 1.0f) continue;
    for (int64_t panel = 0; panel < panels; ++panel) {
      float* sums = s.sums + (panel * rows + r) * kPanel;
      for (int64_t j = 0; j < kPanel; j += Vec::kWidth)
        Vec::store(sums + j, Vec::mul(Vec::load(sums + j), Vec::set(factor)));
    }
  }
  for (int64_t panel = 0; panel < panels; ++panel) {
    const int64_t cols = p.head_dim - panel * kPanel;
    rows_over_slice(x_rows, rows, skip, tokens, s.values + (panel * kKeyBlock + skip) * kPanel,
                    s.sums + panel * rows * kPanel, cols < kPanel ? cols : kPanel, true);
  }
}

void attention_tile(const AttentionTile& p) {
  const int64_t rows = p.queries * p.group;
  const int64_t panels = (p.head_dim + kPanel - 1) / kPanel;
  AttentionScratch s;
  s.query_stride = (p.head_dim + 15) / 16 * 16;
  s.keys = p.scratch;
  s.values = s.keys + p.head_dim * kKeyBlock;
  s.queries = s.values + panels * kKeyBlock * kPanel;
  s.scores = s.queries + rows * s.query_stride;
  s.sums = s.scores + rows * kKeyBlock;
  s.totals = s.sums + rows * panels * kPanel;
  s.maxima = s.totals + rows * 16;
  for (int64_t r = 0; r < rows; ++r) {
    const float* q = p.q + r / p.group * p.q_token_stride + r % p.group * p.q_head_stride;
    for (int64_t d = 0; d < p.head_dim; ++d) s.queries[r * s.query_stride + d] = q[d] * p.scale;
    s.maxima[r] = -__builtin_inff();
  }
  __builtin_memset(s.sums, 0, static_cast<std::size_t>(rows * panels * kPanel) * sizeof(float));
  __builtin_memset(s.totals, 0, static_cast<std::size_t>(rows * 16) * sizeof(float));

  const int64_t context = p.first_position + p.queries;
  int64_t first = p.window > 0 ? p.first_position + 1 - p.window : 0;
  if (first < 0) first = 0;
  for (int64_t begin = first / kKeyBlock * kKeyBlock; begin < context; begin += kKeyBlock) {
    const int64_t tokens = context - begin < kKeyBlock ? context - begin : kKeyBlock;
    attend_block(p, s, begin, first > begin ? first - begin : 0, tokens);
  }

  for (int64_t r = 0; r < rows; ++r) {
    const float total = Vec::sum(Vec::load(s.totals + r * 16));
    float* out = p.out + r / p.group * p.out_token_stride + r % p.group * p.out_head_stride;
    for (int64_t d = 0; d < p.head_dim; ++d)
      out[d] = s.sums[(d / kPanel * rows + r) * kPanel + d % kPanel] / total;
  }
}
