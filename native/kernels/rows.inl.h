// Element-wise and row-wise kernels. `Vec` is the vector unit of the including ISA file.
// Included inside an anonymous namespace: see isa/*.cpp.

// exp(x), relative error below 2e-7; 0 below -87.3 (also for -inf), exp(88) above 88, NaN stays
// NaN. exp(0) is exactly 1. Cody-Waite reduction and the Taylor polynomial of degree 7 on
// [-ln(2)/2, ln(2)/2], whose remainder is below 6e-9.
inline Vec::F vec_exp(Vec::F x) {
  using F = Vec::F;
  // The operand order of min and max keeps a NaN of x.
  const F bounded = Vec::max(Vec::set(-87.33654f), Vec::min(Vec::set(88.0f), x));
  const F n = Vec::round(Vec::mul(bounded, Vec::set(1.44269504f)));
  F r = Vec::fma(n, Vec::set(-0.693145751953125f), bounded);
  r = Vec::fma(n, Vec::set(-1.42860682030941723e-6f), r);
  F p = Vec::set(1.0f / 5040);
  p = Vec::fma(p, r, Vec::set(1.0f / 720));
  p = Vec::fma(p, r, Vec::set(1.0f / 120));
  p = Vec::fma(p, r, Vec::set(1.0f / 24));
  p = Vec::fma(p, r, Vec::set(1.0f / 6));
  p = Vec::fma(p, r, Vec::set(0.5f));
  p = Vec::fma(p, r, Vec::set(1.0f));
  p = Vec::fma(p, r, Vec::set(1.0f));
  return Vec::zero_where_below(x, -87.33654f, Vec::scale_by_power(p, n));
}

void store_rows(const StoreRows& p) {
  constexpr int64_t kWidth = Vec::kWidth;
  for (int64_t r = 0; r < p.rows; ++r) {
    const float* c = p.c + r * kPanel;
    float* out = p.out + r * p.out_stride;
    for (int64_t j = 0; j < p.cols; j += kWidth) {
      const int64_t n = p.cols - j;
      Vec::F value = Vec::load(c + j);
      if (n >= kWidth) {
        if (p.bias != nullptr) value = Vec::add(value, Vec::load(p.bias + j));
        if (p.accumulate) value = Vec::add(Vec::load(out + j), value);
        Vec::store(out + j, value);
      } else {
        if (p.bias != nullptr) value = Vec::add(value, Vec::load_first(p.bias + j, n));
        if (p.accumulate) value = Vec::add(Vec::load_first(out + j, n), value);
        Vec::store_first(out + j, value, n);
      }
    }
  }
}

void add_weighted_rows(const AddWeightedRows& p) {
  constexpr int64_t kWidth = Vec::kWidth;
  for (int64_t r = 0; r < p.rows; ++r) {
    const float* c = p.c + r * kPanel;
    float* out = p.out_rows[r];
    const Vec::F weight = Vec::set(p.weight[r]);
    for (int64_t j = 0; j < p.cols; j += kWidth) {
      const int64_t n = p.cols - j;
      Vec::F value = Vec::load(c + j);
      if (n >= kWidth) {
        if (p.bias != nullptr) value = Vec::add(value, Vec::load(p.bias + j));
        Vec::store(out + j, Vec::fma(weight, value, Vec::load(out + j)));
      } else {
        if (p.bias != nullptr) value = Vec::add(value, Vec::load_first(p.bias + j, n));
        Vec::store_first(out + j, Vec::fma(weight, value, Vec::load_first(out + j, n)), n);
      }
    }
  }
}

// NaN stays NaN: min and max return it from their second operand.
inline Vec::F vec_gated(Vec::F gate, Vec::F up, const Activation& a) {
  const Vec::F one = Vec::set(1.0f);
  gate = Vec::min(Vec::set(a.limit), gate);
  up = Vec::add(Vec::max(Vec::set(-a.limit), Vec::min(Vec::set(a.limit), up)),
                Vec::set(a.up_offset));
  Vec::F argument = Vec::mul(Vec::set(-a.alpha), gate);
  // Not as a multiplication by zero: the square of a large gate is infinite.
  if (a.cubic != 0.0f)
    argument = Vec::fma(Vec::mul(argument, Vec::set(a.cubic)), Vec::mul(gate, gate), argument);
  const Vec::F exponential = vec_exp(argument);
  return Vec::mul(Vec::div(gate, Vec::add(one, exponential)), up);
}

void gated_rows(const GatedRows& p) {
  constexpr int64_t kWidth = Vec::kWidth;
  for (int64_t r = 0; r < p.rows; ++r) {
    const float* gate_row = p.gate + r * p.in_stride;
    const float* up_row = p.up + r * p.in_stride;
    float* out = p.out + r * p.out_stride;
    for (int64_t j = 0; j < p.cols; j += kWidth) {
      const int64_t n = p.cols - j;
      const bool whole = n >= kWidth;
      Vec::F gate = whole ? Vec::load(gate_row + j) : Vec::load_first(gate_row + j, n);
      Vec::F up = whole ? Vec::load(up_row + j) : Vec::load_first(up_row + j, n);
      if (p.gate_bias != nullptr) {
        gate = Vec::add(gate,
                        whole ? Vec::load(p.gate_bias + j) : Vec::load_first(p.gate_bias + j, n));
        up = Vec::add(up, whole ? Vec::load(p.up_bias + j) : Vec::load_first(p.up_bias + j, n));
      }
      const Vec::F value = vec_gated(gate, up, p.activation);
      if (whole)
        Vec::store(out + j, value);
      else
        Vec::store_first(out + j, value, n);
    }
  }
}

// x may be the same memory as out.
inline void norm_row(const float* x, const float* weight, float eps, int64_t cols, float* out) {
  constexpr int64_t kWidth = Vec::kWidth;
  Vec::F sums[4] = {Vec::zero(), Vec::zero(), Vec::zero(), Vec::zero()};
  int64_t j = 0;
  for (; j + 4 * kWidth <= cols; j += 4 * kWidth)
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const Vec::F value = Vec::load(x + j + i * kWidth);
      sums[i] = Vec::fma(value, value, sums[i]);
    }
  for (; j < cols; j += kWidth) {
    const int64_t n = cols - j;
    const Vec::F value = n >= kWidth ? Vec::load(x + j) : Vec::load_first(x + j, n);
    sums[0] = Vec::fma(value, value, sums[0]);
  }
  const float square_sum =
      Vec::sum(Vec::add(Vec::add(sums[0], sums[1]), Vec::add(sums[2], sums[3])));
  const Vec::F factor =
      Vec::set(1.0f / __builtin_sqrtf(square_sum / static_cast<float>(cols) + eps));
  for (j = 0; j < cols; j += kWidth) {
    const int64_t n = cols - j;
    if (n >= kWidth)
      Vec::store(out + j, Vec::mul(Vec::mul(Vec::load(x + j), factor), Vec::load(weight + j)));
    else
      Vec::store_first(
          out + j,
          Vec::mul(Vec::mul(Vec::load_first(x + j, n), factor), Vec::load_first(weight + j, n)), n);
  }
}

void norm_rows(const NormRows& p) {
  for (int64_t r = 0; r < p.rows; ++r)
    norm_row(p.x + r * p.x_stride, p.weight, p.eps, p.cols, p.out + r * p.out_stride);
}

inline void rotate_head(float* head, const float* cos, const float* sin, int64_t half) {
  constexpr int64_t kWidth = Vec::kWidth;
  for (int64_t j = 0; j < half; j += kWidth) {
    const int64_t n = half - j;
    if (n >= kWidth) {
      const Vec::F a = Vec::load(head + j), b = Vec::load(head + half + j);
      const Vec::F c = Vec::load(cos + j), s = Vec::load(sin + j);
      Vec::store(head + j, Vec::sub(Vec::mul(a, c), Vec::mul(b, s)));
      Vec::store(head + half + j, Vec::add(Vec::mul(b, c), Vec::mul(a, s)));
    } else {
      const Vec::F a = Vec::load_first(head + j, n), b = Vec::load_first(head + half + j, n);
      const Vec::F c = Vec::load_first(cos + j, n), s = Vec::load_first(sin + j, n);
      Vec::store_first(head + j, Vec::sub(Vec::mul(a, c), Vec::mul(b, s)), n);
      Vec::store_first(head + half + j, Vec::add(Vec::mul(b, c), Vec::mul(a, s)), n);
    }
  }
}

inline void store_token(const float* source, uint8_t* plane, int64_t slot, const RopeRows& p) {
  const int64_t width = p.kv_heads * p.head_dim;
  uint8_t* page = plane + slot / p.page_tokens * p.page_bytes;
  const int64_t offset = slot % p.page_tokens * width;
  if (p.dtype == DType::kF32) {
    __builtin_memcpy(reinterpret_cast<float*>(page) + offset, source,
                     static_cast<std::size_t>(width) * sizeof(float));
  } else {
    uint16_t* target = reinterpret_cast<uint16_t*>(page) + offset;
    for (int64_t j = 0; j < width; ++j) target[j] = to_bf16(source[j]);
  }
}

void rope_rows(const RopeRows& p) {
  const int64_t half = p.rotary_dim / 2;
  for (int64_t r = 0; r < p.rows; ++r) {
    float* row = p.qkv + r * p.qkv_stride;
    const float* cos = p.cos + p.positions[r] * half;
    const float* sin = p.sin + p.positions[r] * half;
    for (int64_t h = 0; h < p.q_heads + p.kv_heads; ++h) {
      float* head = row + h * p.head_dim;
      const float* norm = h < p.q_heads ? p.q_norm : p.k_norm;
      if (p.rotate_first) rotate_head(head + p.rotary_start, cos, sin, half);
      if (norm != nullptr) norm_row(head, norm, p.eps, p.head_dim, head);
      if (!p.rotate_first) rotate_head(head + p.rotary_start, cos, sin, half);
    }
    if (p.slots[r] < 0) continue;
    const float* k = row + p.q_heads * p.head_dim;
    store_token(k, p.k_plane, p.slots[r], p);
    if (p.v_plane != nullptr) store_token(k + p.kv_heads * p.head_dim, p.v_plane, p.slots[r], p);
  }
}

// Softmax of a row, or sigmoids. False: they are not numbers.
inline bool scores_of(const float* logits, int64_t experts, bool sigmoid, float* scores) {
  constexpr int64_t kWidth = Vec::kWidth;
  float largest = 0;
  if (!sigmoid) {
    largest = logits[0];
    for (int64_t e = 1; e < experts; ++e)
      if (logits[e] > largest) largest = logits[e];
  }
  Vec::F sums = Vec::zero();
  for (int64_t e = 0; e < experts; e += kWidth) {
    const int64_t n = experts - e;
    // Lanes past the end hold exp(0) after load_first, so they are cut off before the sum.
    Vec::F value = n >= kWidth ? Vec::load(logits + e) : Vec::load_first(logits + e, n);
    value = sigmoid ? Vec::sub(Vec::zero(), value) : Vec::sub(value, Vec::set(largest));
    value = vec_exp(value);
    Vec::store(scores + e, value);
    if (n < kWidth) value = Vec::load_first(scores + e, n);
    sums = Vec::add(sums, value);
  }
  if (sigmoid) {
    bool good = true;
    for (int64_t e = 0; e < experts; ++e) {
      scores[e] = 1 / (1 + scores[e]);
      good &= logits[e] == logits[e];
    }
    return good;
  }
  // At least exp(0); NaN after a NaN, an infinity, or a row of nothing but -infinity.
  const float total = Vec::sum(sums);
  for (int64_t e = 0; e < experts; ++e) scores[e] /= total;
  return total >= 1;
}

// Shuts out the experts of all groups but the best, ties to the lower one.
inline void keep_best_groups(const RouterRules& rules, int64_t experts, float* wanted,
                             float* counts) {
  const int64_t size = experts / rules.groups;
  for (int64_t g = 0; g < rules.groups; ++g) {
    const float* group = wanted + g * size;
    float best = group[0], second = -__builtin_inff();
    for (int64_t e = 1; e < size; ++e) {
      if (group[e] > best) {
        second = best;
        best = group[e];
      } else if (group[e] > second) {
        second = group[e];
      }
    }
    counts[g] = rules.best_two ? best + second : best;
  }
  for (int64_t g = 0; g < rules.groups; ++g) {
    int64_t better = 0;
    for (int64_t other = 0; other < rules.groups; ++other)
      better += counts[other] > counts[g] || (counts[other] == counts[g] && other < g);
    if (better < rules.groups_per_token) continue;
    for (int64_t e = 0; e < size; ++e) wanted[g * size + e] = -__builtin_inff();
  }
}

void router_rows(RouterRows& p) {
  const RouterRules& rules = p.rules;
  const int64_t stride = round_up(p.experts, 16);
  float* const scores = p.scratch;
  float* const wanted = scores + stride;
  p.undefined = false;
  for (int64_t r = 0; r < p.rows; ++r) {
    if (!scores_of(p.logits + r * p.logits_stride, p.experts, rules.sigmoid, scores))
      p.undefined = true;
    for (int64_t e = 0; e < p.experts; ++e)
      wanted[e] = rules.correction == nullptr ? scores[e] : scores[e] + rules.correction[e];
    if (rules.groups > rules.groups_per_token)
      keep_best_groups(rules, p.experts, wanted, wanted + stride);
    int32_t* ids = p.out_ids + r * p.top_k;
    float* weights = p.out_weights + r * p.top_k;
    int64_t found = 0;
    for (int64_t e = 0; e < p.experts; ++e) {
      if (found == p.top_k && !(wanted[e] > weights[found - 1])) continue;
      int64_t place = found < p.top_k ? found++ : found - 1;
      for (; place > 0 && wanted[e] > weights[place - 1]; --place) {
        weights[place] = weights[place - 1];
        ids[place] = ids[place - 1];
      }
      weights[place] = wanted[e];
      ids[place] = static_cast<int32_t>(e);
    }
    float sum = rules.sigmoid ? 1e-20f : 0;  // all sigmoids may be 0
    for (int64_t i = 0; i < p.top_k; ++i) {
      weights[i] = scores[ids[i]];
      sum += weights[i];
    }
    for (int64_t i = 0; i < p.top_k; ++i) {
      if (rules.normalize) weights[i] /= sum;
      weights[i] *= rules.scale;
    }
  }
}
