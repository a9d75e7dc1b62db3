// Rows times one weight panel. `Vec` is the vector unit of the including ISA file.
// Included inside an anonymous namespace: see isa/*.cpp.

// A K slice of fp32 panel: b[(k - k_begin)][kPanel]. Also used by attention, whose key and value
// blocks are brought into the same layout.
template <int kRows, int kVecs>
inline void tile_f32(const float* const* x_rows, int64_t k_begin, int64_t k_end, const float* b,
                     float* c, bool load_c) {
  using F = typename Vec::F;
  constexpr int kWidth = Vec::kWidth;
  F acc[kRows][kVecs];
  const float* x[kRows];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    x[r] = x_rows[r];
#pragma GCC unroll 8
    for (int v = 0; v < kVecs; ++v)
      acc[r][v] = load_c ? Vec::load(c + r * kPanel + v * kWidth) : Vec::zero();
  }
  for (int64_t k = k_begin; k < k_end; ++k, b += kPanel) {
    F bv[kVecs];
#pragma GCC unroll 8
    for (int v = 0; v < kVecs; ++v) bv[v] = Vec::load(b + v * kWidth);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const F a = Vec::set(x[r][k]);
#pragma GCC unroll 8
      for (int v = 0; v < kVecs; ++v) acc[r][v] = Vec::fma(a, bv[v], acc[r][v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < kVecs; ++v) Vec::store(c + r * kPanel + v * kWidth, acc[r][v]);
}

// A K slice of bf16 panel: pairs of K steps, widened in registers. k_begin is even.
template <int kRows, int kVecs>
inline void tile_bf16(const float* const* x_rows, int64_t k_begin, int64_t k_end, const uint32_t* b,
                      float* c, bool load_c) {
  using F = typename Vec::F;
  constexpr int kWidth = Vec::kWidth;
  F acc[kRows][kVecs];
  const float* x[kRows];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    x[r] = x_rows[r];
#pragma GCC unroll 8
    for (int v = 0; v < kVecs; ++v)
      acc[r][v] = load_c ? Vec::load(c + r * kPanel + v * kWidth) : Vec::zero();
  }
  int64_t k = k_begin;
  for (; k + 1 < k_end; k += 2, b += kPanel) {
    F bv[kVecs];
#pragma GCC unroll 8
    for (int v = 0; v < kVecs; ++v) bv[v] = Vec::pair_even(b + v * kWidth);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const F a = Vec::set(x[r][k]);
#pragma GCC unroll 8
      for (int v = 0; v < kVecs; ++v) acc[r][v] = Vec::fma(a, bv[v], acc[r][v]);
    }
#pragma GCC unroll 8
    for (int v = 0; v < kVecs; ++v) bv[v] = Vec::pair_odd(b + v * kWidth);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const F a = Vec::set(x[r][k + 1]);
#pragma GCC unroll 8
      for (int v = 0; v < kVecs; ++v) acc[r][v] = Vec::fma(a, bv[v], acc[r][v]);
    }
  }
  if (k < k_end) {
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const F a = Vec::set(x[r][k]);
#pragma GCC unroll 8
      for (int v = 0; v < kVecs; ++v)
        acc[r][v] = Vec::fma(a, Vec::pair_even(b + v * kWidth), acc[r][v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < kVecs; ++v) Vec::store(c + r * kPanel + v * kWidth, acc[r][v]);
}

struct SliceOfF32 {
  using Word = float;
  template <int kRows, int kVecs>
  static void tile(const float* const* x, int64_t k0, int64_t k1, const Word* b, float* c,
                   bool load_c) {
    tile_f32<kRows, kVecs>(x, k0, k1, b, c, load_c);
  }
};

struct SliceOfBf16 {
  using Word = uint32_t;
  template <int kRows, int kVecs>
  static void tile(const float* const* x, int64_t k0, int64_t k1, const Word* b, float* c,
                   bool load_c) {
    tile_bf16<kRows, kVecs>(x, k0, k1, b, c, load_c);
  }
};

template <typename Slice, int kRows>
inline void tile_columns(const float* const* x, int64_t k0, int64_t k1,
                         const typename Slice::Word* b, float* c, int64_t cols, bool load_c) {
  constexpr int64_t kTileCols = Vec::kTileVecs * Vec::kWidth;
  if constexpr (kTileCols == kPanel) {
    if (2 * cols <= kPanel) {  // small routers, short contexts, head_dim 32
      Slice::template tile<kRows, Vec::kTileVecs / 2>(x, k0, k1, b, c, load_c);
      return;
    }
  }
  for (int64_t col = 0; col < cols; col += kTileCols)
    Slice::template tile<kRows, Vec::kTileVecs>(x, k0, k1, b + col, c + col, load_c);
}

// All rows over one K slice. Rows are split evenly (7 = 4 + 3, not 6 + 1), because the small tiles
// wait for the latency of the multiply-add.
template <typename Slice>
inline void rows_over_slice(const float* const* x_rows, int64_t rows, int64_t k0, int64_t k1,
                            const typename Slice::Word* b, float* c, int64_t cols, bool load_c) {
  const int64_t tiles = (rows + Vec::kTileRows - 1) / Vec::kTileRows;
  int64_t row = 0;
  for (int64_t t = 0; t < tiles; ++t) {
    const int64_t end = rows * (t + 1) / tiles;
    const float* const* x = x_rows + row;
    float* c_row = c + row * kPanel;
    switch (end - row) {
      case 1:
        tile_columns<Slice, 1>(x, k0, k1, b, c_row, cols, load_c);
        break;
      case 2:
        tile_columns<Slice, 2>(x, k0, k1, b, c_row, cols, load_c);
        break;
      case 3:
        tile_columns<Slice, 3>(x, k0, k1, b, c_row, cols, load_c);
        break;
      case 4:
        tile_columns<Slice, 4>(x, k0, k1, b, c_row, cols, load_c);
        break;
      case 5:
        tile_columns<Slice, 5>(x, k0, k1, b, c_row, cols, load_c);
        break;
      default:
        tile_columns<Slice, 6>(x, k0, k1, b, c_row, cols, load_c);
        break;
    }
    row = end;
  }
}

void panel_product(const PanelProduct& p) {
  for (int64_t k0 = 0; k0 == 0 || k0 < p.k; k0 += kSlice) {
    const int64_t k1 = p.k < k0 + kSlice ? p.k : k0 + kSlice;
    for (int64_t i = 0; i < p.panels; ++i) {
      float* c = p.c + i * p.rows * kPanel;
      const int64_t cols = i + 1 == p.panels ? p.cols : kPanel;
      if (p.dtype == DType::kF32)
        rows_over_slice<SliceOfF32>(
            p.x_rows, p.rows, k0, k1,
            static_cast<const float*>(p.panel) + i * p.panel_words + k0 * kPanel, c, cols, k0 > 0);
      else
        rows_over_slice<SliceOfBf16>(
            p.x_rows, p.rows, k0, k1,
            static_cast<const uint32_t*>(p.panel) + i * p.panel_words + k0 / 2 * kPanel, c, cols,
            k0 > 0);
    }
  }
}
