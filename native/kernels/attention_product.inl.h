// Rows times an fp32 block [K][kPanel]: keys and values that attention brought into this layout.
// `Vec` is the vector unit of the including ISA file.
// Included inside an anonymous namespace: see isa/*.cpp.

// b[(k - k_begin)][kPanel]
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

template <int kRows>
inline void tile_f32_columns(const float* const* x, int64_t k0, int64_t k1, const float* b,
                             float* c, int64_t cols, bool load_c) {
  constexpr int64_t kTileCols = Vec::kTileVecs * Vec::kWidth;
  if constexpr (kTileCols == kPanel) {
    if (2 * cols <= kPanel) {  // small routers, short contexts, head_dim 32
      tile_f32<kRows, Vec::kTileVecs / 2>(x, k0, k1, b, c, load_c);
      return;
    }
  }
  for (int64_t col = 0; col < cols; col += kTileCols)
    tile_f32<kRows, Vec::kTileVecs>(x, k0, k1, b + col, c + col, load_c);
}

// All rows over one K slice. Rows are split evenly (7 = 4 + 3, not 6 + 1), because the small tiles
// wait for the latency of the multiply-add.
inline void rows_over_slice(const float* const* x_rows, int64_t rows, int64_t k0, int64_t k1,
                            const float* b, float* c, int64_t cols, bool load_c) {
  const int64_t tiles = (rows + Vec::kTileRows - 1) / Vec::kTileRows;
  int64_t row = 0;
  for (int64_t t = 0; t < tiles; ++t) {
    const int64_t end = rows * (t + 1) / tiles;
    const float* const* x = x_rows + row;
    float* c_row = c + row * kPanel;
    switch (end - row) {
      case 1:
        tile_f32_columns<1>(x, k0, k1, b, c_row, cols, load_c);
        break;
      case 2:
        tile_f32_columns<2>(x, k0, k1, b, c_row, cols, load_c);
        break;
      case 3:
        tile_f32_columns<3>(x, k0, k1, b, c_row, cols, load_c);
        break;
      case 4:
        tile_f32_columns<4>(x, k0, k1, b, c_row, cols, load_c);
        break;
      case 5:
        tile_f32_columns<5>(x, k0, k1, b, c_row, cols, load_c);
        break;
      default:
        tile_f32_columns<6>(x, k0, k1, b, c_row, cols, load_c);
        break;
    }
    row = end;
  }
}
