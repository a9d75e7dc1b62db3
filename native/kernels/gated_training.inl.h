// The activation in training: its operands kept in the forward pass, its derivative in the backward
// pass. Included inside an anonymous namespace, after rows.inl.h and low_rank.inl.h: see isa/*.cpp.

constexpr int64_t kHalfPanel = kPanel / 2;

template <DType kDType>
inline void store_values(const float* values, int64_t count, std::byte* out) {
  if constexpr (kDType == DType::kF32)
    __builtin_memcpy(out, values, static_cast<std::size_t>(count) * sizeof(float));
  else
    bf16_row(values, count, count, reinterpret_cast<uint16_t*>(out));
}

inline Vec::F with_bias(Vec::F value, const float* bias, int64_t cols, int64_t j) {
  if (bias == nullptr || cols <= j) return value;
  const int64_t left = cols - j;
  return Vec::add(value,
                  left >= Vec::kWidth ? Vec::load(bias + j) : Vec::load_first(bias + j, left));
}

template <DType kDType>
inline void save_gated_rows(const SaveGated& p) {
  alignas(64) float gate[kHalfPanel], up[kHalfPanel], activated[kHalfPanel];
  for (int64_t r = 0; r < p.rows; ++r) {
    const float* c = p.c + r * kPanel;
    for (int64_t j = 0; j < kHalfPanel; j += Vec::kWidth) {
      const Vec::F g = with_bias(Vec::load(c + j), p.gate_bias, p.bias_cols, j);
      const Vec::F u = with_bias(Vec::load(c + kHalfPanel + j), p.up_bias, p.bias_cols, j);
      Vec::store(gate + j, g);
      Vec::store(up + j, u);
      Vec::store(activated + j, vec_gated(g, u, p.activation));
    }
    if (p.gate != nullptr) {
      store_values<kDType>(gate, kHalfPanel, p.gate + r * p.stride);
      store_values<kDType>(up, kHalfPanel, p.up + r * p.stride);
    }
    if (p.activated != nullptr)
      store_values<kDType>(activated, kHalfPanel, p.activated + r * p.activated_stride);
  }
}

void save_gated(const SaveGated& p) {
  if (p.dtype == DType::kF32)
    save_gated_rows<DType::kF32>(p);
  else
    save_gated_rows<DType::kBf16>(p);
}

template <DType kDType>
inline void gated_backward_rows(const GatedBackward& p) {
  const Activation& a = p.activation;
  const Vec::F one = Vec::set(1.0f), limit = Vec::set(a.limit), alpha = Vec::set(a.alpha);
  const Vec::F lowest = Vec::set(-a.limit), up_offset = Vec::set(a.up_offset);
  for (int64_t r = 0; r < p.rows; ++r) {
    std::byte* gate_row = p.gate + r * p.stride;
    std::byte* up_row = p.up + r * p.stride;
    const Vec::F weight = Vec::set(p.weight[r]);
    Vec::F dot = Vec::zero();
    for (int64_t j = 0; j < kPanel; j += Vec::kWidth) {
      const int64_t at = r * kPanel + j;
      const Vec::F gate = load_values<kDType>(gate_row, j), up = load_values<kDType>(up_row, j);
      const Vec::F g = Vec::min(limit, gate);
      const Vec::F u = Vec::max(lowest, Vec::min(limit, up));
      const Vec::F factor = Vec::add(u, up_offset);
      const Vec::F exponential = vec_exp(Vec::mul(Vec::sub(Vec::zero(), alpha), g));
      const Vec::F sigmoid = Vec::div(one, Vec::add(one, exponential));
      const Vec::F swish = Vec::mul(g, sigmoid);
      const Vec::F activated = Vec::mul(swish, factor);
      const Vec::F grad = Vec::load(p.grad + at);
      dot = Vec::fma(grad, activated, dot);
      const Vec::F weighted = Vec::mul(weight, grad);
      // sigmoid (1 + alpha g (1 - sigmoid))
      const Vec::F slope =
          Vec::mul(sigmoid, Vec::fma(Vec::mul(alpha, g), Vec::sub(one, sigmoid), one));
      const Vec::F by_gate = Vec::mul(Vec::mul(weighted, slope), factor);
      const Vec::F by_up = Vec::mul(weighted, swish);
      // What a limit cuts off has no gradient: there the bounded value is another one. NaN stays.
      typedef int32_t Lanes __attribute__((vector_size(4 * Vec::kWidth)));
      const auto kept = [](Vec::F value, Vec::F bounded, Vec::F whole) {
        return reinterpret_cast<Vec::F>(reinterpret_cast<Lanes>(value) & ~(Lanes)(bounded < whole) &
                                        ~(Lanes)(bounded > whole));
      };
      Vec::store(p.activated + at, activated);
      Vec::store(p.grad_gate + at, kept(by_gate, g, gate));
      Vec::store(p.grad_up + at, kept(by_up, u, up));
    }
    p.dot[r] = Vec::sum(dot);
    store_values<kDType>(p.grad_gate + r * kPanel, kPanel, gate_row);
    store_values<kDType>(p.grad_up + r * kPanel, kPanel, up_row);
  }
}

void gated_backward(const GatedBackward& p) {
  if (p.dtype == DType::kF32)
    gated_backward_rows<DType::kF32>(p);
  else
    gated_backward_rows<DType::kBf16>(p);
}
