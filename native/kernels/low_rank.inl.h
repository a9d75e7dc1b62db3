// Products with the matrices of a LoRA, in fp32. Every element is one sum in ascending order, so
// that a row's bits do not depend on the rows beside it.
// Included inside an anonymous namespace: see isa/*.cpp.

template <DType kDType>
inline Vec::F load_values(const std::byte* row, int64_t at) {
  if constexpr (kDType == DType::kF32)
    return Vec::load(reinterpret_cast<const float*>(row) + at);
  else
    return Vec::load_bf16(reinterpret_cast<const uint16_t*>(row) + at);
}
template <DType kDType>
inline Vec::F load_first_values(const std::byte* row, int64_t at, int64_t n) {
  if constexpr (kDType == DType::kF32)
    return Vec::load_first(reinterpret_cast<const float*>(row) + at, n);
  else
    return Vec::load_bf16_first(reinterpret_cast<const uint16_t*>(row) + at, n);
}

// Of 32 registers a tile takes 16 sums and 8 operands, of 16 it takes 8 and 6.
constexpr int kDotTile = Vec::kWidth == 16 ? 4 : 2;

template <DType kDType>
constexpr int64_t kValueBytes = kDType == DType::kF32 ? 4 : 2;

template <DType kDType, DType kMatrix, int kRows, int kRank>
inline void dot_tile(const LowRankDot& p, int64_t row, int64_t j) {
  constexpr int64_t kWidth = Vec::kWidth;
  const std::byte* const matrix =
      static_cast<const std::byte*>(p.matrix) + j * p.matrix_stride * kValueBytes<kMatrix>;
  Vec::F acc[kRows][kRank];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
    for (int i = 0; i < kRank; ++i) acc[r][i] = Vec::zero();
  const auto step = [&](const auto& value, const auto& weight) {
    Vec::F w[kRank];
#pragma GCC unroll 4
    for (int i = 0; i < kRank; ++i)
      w[i] = weight(matrix + i * p.matrix_stride * kValueBytes<kMatrix>);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const Vec::F x = value(p.rows[row + r]);
#pragma GCC unroll 4
      for (int i = 0; i < kRank; ++i) acc[r][i] = Vec::fma(x, w[i], acc[r][i]);
    }
  };
  int64_t k = 0;
  for (; k + kWidth <= p.k; k += kWidth)
    step([&](const std::byte* x) { return load_values<kDType>(x, k); },
         [&](const std::byte* w) { return load_values<kMatrix>(w, k); });
  if (k < p.k)
    step([&](const std::byte* x) { return load_first_values<kDType>(x, k, p.k - k); },
         [&](const std::byte* w) { return load_first_values<kMatrix>(w, k, p.k - k); });
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
    for (int i = 0; i < kRank; ++i) {
      float* out = p.out + (row + r) * p.out_stride + j + i;
      const float sum = p.scale * Vec::sum(acc[r][i]);
      *out = p.accumulate ? *out + sum : sum;
    }
}

template <DType kDType, DType kMatrix, int kRank>
inline void dot_rows(const LowRankDot& p, int64_t j) {
  int64_t row = 0;
  for (; row + kDotTile <= p.count; row += kDotTile)
    dot_tile<kDType, kMatrix, kDotTile, kRank>(p, row, j);
  for (; row < p.count; ++row) dot_tile<kDType, kMatrix, 1, kRank>(p, row, j);
}

template <DType kDType, DType kMatrix>
inline void dot_all(const LowRankDot& p) {
  int64_t j = 0;
  for (; j + kDotTile <= p.rank; j += kDotTile) dot_rows<kDType, kMatrix, kDotTile>(p, j);
  for (; j < p.rank; ++j) dot_rows<kDType, kMatrix, 1>(p, j);
}

void low_rank_dot(const LowRankDot& p) {
  if (p.matrix_dtype == DType::kBf16)
    dot_all<DType::kF32, DType::kBf16>(p);
  else if (p.dtype == DType::kF32)
    dot_all<DType::kF32, DType::kF32>(p);
  else
    dot_all<DType::kBf16, DType::kF32>(p);
}

// Half a panel is 2, 4 or 8 vectors.
constexpr int kStripVecs = kPanel / 2 / Vec::kWidth < 4 ? kPanel / 2 / Vec::kWidth : 4;

template <DType kMatrix, int kRows>
inline void add_tile(const LowRankAdd& p, int64_t row, int64_t column) {
  Vec::F acc[kRows][kStripVecs];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < kStripVecs; ++v)
      acc[r][v] = Vec::load(p.c + (row + r) * kPanel + column + v * Vec::kWidth);
  const int64_t row_bytes = p.cols * kValueBytes<kMatrix>;
  for (int64_t j = 0; j < p.rank; ++j) {
    const std::byte* matrix = static_cast<const std::byte*>(p.matrix) + j * row_bytes;
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const Vec::F low = Vec::set(p.low[(row + r) * p.low_stride + j]);
#pragma GCC unroll 4
      for (int v = 0; v < kStripVecs; ++v)
        acc[r][v] =
            Vec::fma(low, load_values<kMatrix>(matrix, column + v * Vec::kWidth), acc[r][v]);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < kStripVecs; ++v)
      Vec::store(p.c + (row + r) * kPanel + column + v * Vec::kWidth, acc[r][v]);
}

template <DType kMatrix>
inline void add_all(const LowRankAdd& p) {
  constexpr int kRows = Vec::kWidth == 16 ? 4 : 2;
  for (int64_t column = 0; column < p.cols; column += kStripVecs * Vec::kWidth) {
    int64_t row = 0;
    for (; row + kRows <= p.rows; row += kRows) add_tile<kMatrix, kRows>(p, row, column);
    for (; row < p.rows; ++row) add_tile<kMatrix, 1>(p, row, column);
  }
}

void low_rank_add(const LowRankAdd& p) {
  if (p.matrix_dtype == DType::kBf16)
    add_all<DType::kBf16>(p);
  else
    add_all<DType::kF32>(p);
}

template <DType kDType, int kRank>
inline void grad_tile(const LowRankGrad& p, int64_t j, int64_t column) {
  Vec::F acc[kRank][kStripVecs];
  float* grad = p.grad + j * kPanel + column;
#pragma GCC unroll 4
  for (int i = 0; i < kRank; ++i)
#pragma GCC unroll 4
    for (int v = 0; v < kStripVecs; ++v)
      acc[i][v] = p.accumulate ? Vec::load(grad + i * kPanel + v * Vec::kWidth) : Vec::zero();
  for (int64_t r = 0; r < p.count; ++r) {
    const float* low = p.low + r * p.low_stride + j;
#pragma GCC unroll 4
    for (int v = 0; v < kStripVecs; ++v) {
      const Vec::F x = load_values<kDType>(p.rows[r], column + v * Vec::kWidth);
#pragma GCC unroll 4
      for (int i = 0; i < kRank; ++i) acc[i][v] = Vec::fma(Vec::set(low[i]), x, acc[i][v]);
    }
  }
#pragma GCC unroll 4
  for (int i = 0; i < kRank; ++i)
#pragma GCC unroll 4
    for (int v = 0; v < kStripVecs; ++v) Vec::store(grad + i * kPanel + v * Vec::kWidth, acc[i][v]);
}

template <DType kDType>
inline void grad_all(const LowRankGrad& p) {
  constexpr int kRank = Vec::kWidth == 16 ? 4 : 2;
  for (int64_t column = 0; column < kPanel; column += kStripVecs * Vec::kWidth) {
    int64_t j = 0;
    for (; j + kRank <= p.rank; j += kRank) grad_tile<kDType, kRank>(p, j, column);
    for (; j < p.rank; ++j) grad_tile<kDType, 1>(p, j, column);
  }
}

void low_rank_grad(const LowRankGrad& p) {
  if (p.dtype == DType::kF32)
    grad_all<DType::kF32>(p);
  else
    grad_all<DType::kBf16>(p);
}
