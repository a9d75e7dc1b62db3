// Rows times weight panels on AMX tiles. `Tiles` is the tile unit of the including ISA file.
// Included inside an anonymous namespace, after product.inl.h: see isa/*.cpp.
//
// Panels, slices of K, groups and scales are those of the vector product, and so is every rounding:
// which of the two kernels a row goes through does not change its bits.

// The vector product in the order of TDPBF16PS: the even and the odd products of a tile's 16 pairs
// are summed apart, from zero, then added.
struct OpBf16Apart : OpBf16 {
  static constexpr int64_t kStepsApart = 16;
};

// Multiplies all rows of a product, which lie equally far apart, by a slice of one panel.
template <typename TheOp>
class TileUnit {
 public:
  using Op = TheOp;
  static constexpr bool kWindows = false;
  // 1 KiB of each row. More of 32 rows and as many columns is more than L1 holds; less, and tiles
  // of sums are loaded and stored more often.
  static constexpr int64_t kSliceK = 1024;
  static constexpr int64_t kFloatSliceK = kSliceK / 2;
  static constexpr int64_t kScratchK = 512;

  TileUnit(const PanelProduct& p, const PanelLayout& layout)
      : p_(p),
        short_groups_(layout.groups > 1 && layout.group_k <= kShortGroup),
        prefetch_(spread_evenly(p, fetches(p, layout))),
        first_row_(p.x_rows[0]),
        row_stride_(p.rows > 1 ? p.x_rows[1] - p.x_rows[0] : 0),
        sums_(p.scratch + kScratchK * kPanel) {
    static_assert(kScratchK * kPanel + 4 * kSumBytes <= kProductScratch);
  }

  void multiply(const FloatRun& run, int64_t panel) {
    over_blocks(panel, run.steps, [&](int64_t row, int64_t column, float* c) {
      begin_sums(run.first, c);
      accumulate<Operand::kBf16>(row_at(row) + run.row_offset, run.weights + column * 4, run.steps);
      store_sums(c, kStride);
    });
  }

  void multiply(const IntegerRun& run, int64_t panel) {
    if (short_groups_) return multiply_short_groups(run, panel);
    over_blocks(panel, run.steps, [&](int64_t row, int64_t column, float* c) {
      const std::byte* a = row_at(row) + run.row_offset;
      const std::byte* weights = run.weights + column * 4;
      const std::byte* scales = run.scales + column * Op::Scales::kBytes;
      for (int64_t group = run.first_group; group < run.end_group; ++group) {
        begin_sums(run.begins_group, c);
        accumulate<Operand::kI8>(a, weights, run.steps);
        if (!run.ends_group) return store_sums(c, kStride);
        store_sums(sums_, kBlockColumns * 4);
        scale_sums(run, group, scales, row, c);
        a += run.steps * Op::kRowBytes;
        weights += run.weights_stride;
        scales += run.scales_stride;
      }
    });
  }

  void multiply(const ScaledRun& run, int64_t panel) {
    over_blocks(panel, run.steps, [&](int64_t row, int64_t column, float* c) {
      const std::byte* a = row_at(row) + run.row_offset;
      const std::byte* weights = run.weights + column * 4;
      const std::byte* scales = run.scales + column * 4;
      for (int64_t group = run.first_group; group < run.end_group; ++group) {
        begin_sums(true, c);
        accumulate<Operand::kBf16>(a, weights, run.steps);
        store_sums(sums_, kBlockColumns * 4);
        scale_sums(group, reinterpret_cast<const float*>(scales), c);
        a += run.steps * Op::kRowBytes;
        weights += run.steps * Op::kPanelBytes;
        scales += run.scales_stride;
      }
    });
  }

 private:
  static constexpr int64_t kBlockRows = 32, kBlockColumns = 32;
  static constexpr int64_t kTileRows = 16, kTileColumns = 16;
  static constexpr int64_t kTileSteps = 16;       // of K: 64 bytes of a row
  static constexpr int64_t kStride = kPanel * 4;  // bytes between rows of sums and of weights
  static constexpr int64_t kShortGroup = 64;
  static constexpr int64_t kSumBytes = kTileRows * kTileColumns * 4;

  int64_t fetches(const PanelProduct& p, const PanelLayout& layout) const {
    const auto tiles = [&](int64_t rows, int64_t columns) {
      return p.panels * ((p.rows + rows - 1) / rows) * (kPanel / columns);
    };
    return short_groups_
               ? tiles(kTileRows, kTileColumns) * layout.groups
               : tiles(kBlockRows, kBlockColumns) * (layout.k / (Op::kSteps * kTileSteps));
  }

  const std::byte* row_at(int64_t row) const { return first_row_ + row * row_stride_; }

  // Calls body(row, column, its results) for blocks of two by two tiles.
  template <typename Body>
  void over_blocks(int64_t panel, int64_t steps, const Body& body) {
    for (int64_t row = 0; row < p_.rows; row += kBlockRows) {
      const int64_t left = p_.rows - row;
      block_rows_ = left < kBlockRows ? left : kBlockRows;
      two_ = block_rows_ > kTileRows;
      tiles_.configure(two_ ? kTileRows : block_rows_, two_ ? block_rows_ - kTileRows : 0,
                       step_bytes(steps));
      for (int64_t column = 0; column < columns(p_, panel); column += kBlockColumns)
        body(row, column, results(p_, panel) + row * kPanel + column);
    }
  }
  static int64_t step_bytes(int64_t steps) { return 4 * (steps < kTileSteps ? steps : kTileSteps); }

  void begin_sums(bool from_zero, const float* c) {
    if (from_zero) {
      tiles_.template zero_c<0, 0>();
      tiles_.template zero_c<0, 1>();
      if (!two_) return;
      tiles_.template zero_c<1, 0>();
      tiles_.template zero_c<1, 1>();
    } else {
      tiles_.template load_c<0, 0>(c, kStride);
      tiles_.template load_c<0, 1>(c + kTileColumns, kStride);
      if (!two_) return;
      tiles_.template load_c<1, 0>(c + kTileRows * kPanel, kStride);
      tiles_.template load_c<1, 1>(c + kTileRows * kPanel + kTileColumns, kStride);
    }
  }

  // `stride`: bytes from row to row.
  void store_sums(void* sums, int64_t stride) {
    std::byte* const c = static_cast<std::byte*>(sums);
    std::byte* const below = c + kTileRows * stride;
    tiles_.template store_c<0, 0>(c, stride);
    tiles_.template store_c<0, 1>(c + kTileColumns * 4, stride);
    if (!two_) return;
    tiles_.template store_c<1, 0>(below, stride);
    tiles_.template store_c<1, 1>(below + kTileColumns * 4, stride);
  }

  template <Operand kOperand, int kM, int kN>
  void multiply_tile() {
    if constexpr (kOperand == Operand::kBf16)
      tiles_.template multiply_bf16<kM, kN>();
    else
      tiles_.template multiply_i8<kM, kN>();
  }

  template <Operand kOperand>
  void accumulate(const std::byte* a, const std::byte* weights, int64_t steps) {
    for (int64_t step = 0; step < steps; step += kTileSteps) {
      prefetch_.template some<kIntoL2>();
      tiles_.template load_b<0>(weights, kStride);
      tiles_.template load_a<0>(a, row_stride_);
      multiply_tile<kOperand, 0, 0>();
      tiles_.template load_b<1>(weights + kTileColumns * 4, kStride);
      multiply_tile<kOperand, 0, 1>();
      if (two_) {
        tiles_.template load_a<1>(a + kTileRows * row_stride_, row_stride_);
        multiply_tile<kOperand, 1, 0>();
        multiply_tile<kOperand, 1, 1>();
      }
      a += kTileSteps * 4;
      weights += kTileSteps * kStride;
    }
  }

  // The end of a group, as IntegerTile does it.
  void scale_sums(const IntegerRun& run, int64_t group, const std::byte* scales, int64_t row,
                  float* c) const {
    const std::byte* x = row_at(row);
    const std::byte* sums = sums_;
    for (int64_t r = 0; r < block_rows_;
         ++r, c += kPanel, x += row_stride_, sums += kBlockColumns * 4)
      for (int64_t i = 0; i < kBlockColumns; i += Vec::kWidth) {
        const typename Op::Scales w(scales + i * Op::Scales::kBytes);
        const Vec::F before = group == 0 ? Vec::zero() : Vec::load(c + i);
        Vec::store(c + i, scaled(w, Dot::load(sums + i * 4), x, run, group, before));
      }
  }

  // `sum` of tiles, with what the row adds to it, scaled and added to `before`.
  template <typename Scales>
  static Vec::F scaled(const Scales& w, Dot::I sum, const std::byte* x, const IntegerRun& run,
                       int64_t group, Vec::F before) {
    const std::byte* row_sum = x + run.row_sums + group * 4;
    const Vec::F a_scale = Vec::set(reinterpret_cast<const float*>(x + run.row_scales)[group]);
    return w.added(before, Dot::add(Scales::start(row_sum), sum), row_sum, a_scale);
  }

  // Where sums are scaled about as often as tiles are multiplied, a tile's results stay in
  // registers from group to group, and two groups are under way at a time.
  void multiply_short_groups(const IntegerRun& run, int64_t panel) {
    for (int64_t row = 0; row < p_.rows; row += kTileRows) {
      const int64_t left = p_.rows - row;
      const int64_t count = left < kTileRows ? left : kTileRows;
      tiles_.configure(count, count, step_bytes(run.steps));
      for (int64_t column = 0; column < columns(p_, panel); column += kTileColumns) {
        float* c = results(p_, panel) + row * kPanel + column;
        if (count == kTileRows)
          tile_of_groups<true>(run, row, kTileRows, column, c);
        else
          tile_of_groups<false>(run, row, count, column, c);
      }
    }
  }

  template <bool kAllRows>
  void tile_of_groups(const IntegerRun& run, int64_t row, int64_t count, int64_t column, float* c) {
    Results sums;
    const int64_t rows = kAllRows ? kTileRows : count;
    const std::byte* x = row_at(row);
    const std::byte* a = x + run.row_offset;
    const std::byte* weights = run.weights + column * 4;
    const std::byte* scales = run.scales + column * Op::Scales::kBytes;
#pragma GCC unroll 16
    for (int64_t r = 0; r < rows; ++r)
#pragma GCC unroll 4
      for (int v = 0; v < kTileVecs; ++v)
        sums[r][v] =
            run.first_group == 0 ? Vec::zero() : Vec::load(c + r * kPanel + v * Vec::kWidth);
    for (int64_t group = run.first_group; group < run.end_group; group += 2) {
      const bool two = group + 1 < run.end_group;
      multiply_group<0>(a, weights, run.steps);
      if (two)
        multiply_group<1>(a + run.steps * Op::kRowBytes, weights + run.weights_stride, run.steps);
      add_group<kAllRows>(run, group, x, scales, sums_, rows, sums);
      if (two)
        add_group<kAllRows>(run, group + 1, x, scales + run.scales_stride, sums_ + kSumBytes, rows,
                            sums);
      a += 2 * run.steps * Op::kRowBytes;
      weights += 2 * run.weights_stride;
      scales += 2 * run.scales_stride;
    }
#pragma GCC unroll 16
    for (int64_t r = 0; r < rows; ++r)
#pragma GCC unroll 4
      for (int v = 0; v < kTileVecs; ++v) Vec::store(c + r * kPanel + v * Vec::kWidth, sums[r][v]);
  }

  static constexpr int kTileVecs = kTileColumns / Vec::kWidth;
  using Results = Vec::F[kTileRows][kTileVecs];

  template <int kNth>
  void multiply_group(const std::byte* a, const std::byte* weights, int64_t steps) {
    prefetch_.template some<kIntoL2>();
    tiles_.template zero_c<kNth, kNth>();
    for (int64_t step = 0; step < steps; step += kTileSteps) {
      tiles_.template load_b<kNth>(weights + step * kStride, kStride);
      tiles_.template load_a<kNth>(a + step * 4, row_stride_);
      tiles_.template multiply_i8<kNth, kNth>();
    }
    tiles_.template store_c<kNth, kNth>(sums_ + kNth * kSumBytes, kTileColumns * 4);
  }

  template <bool kAllRows>
  inline __attribute__((always_inline)) void add_group(const IntegerRun& run, int64_t group,
                                                       const std::byte* x, const std::byte* scales,
                                                       const std::byte* from, int64_t count,
                                                       Results& sums) const {
    const int64_t rows = kAllRows ? kTileRows : count;
#pragma GCC unroll 4
    for (int v = 0; v < kTileVecs; ++v) {
      const typename Op::Scales w(scales + v * Vec::kWidth * Op::Scales::kBytes);
#pragma GCC unroll 16
      for (int64_t r = 0; r < rows; ++r) {
        const Dot::I sum = Dot::load(from + (r * kTileColumns + v * Vec::kWidth) * 4);
        sums[r][v] = scaled(w, sum, x + r * row_stride_, run, group, sums[r][v]);
      }
    }
  }

  // The end of a group, as ScaledTile does it.
  void scale_sums(int64_t group, const float* scales, float* c) const {
    const float* sums = reinterpret_cast<const float*>(sums_);
    for (int64_t r = 0; r < block_rows_; ++r, c += kPanel, sums += kBlockColumns)
      for (int64_t column = 0; column < kBlockColumns; column += Vec::kWidth) {
        const Vec::F before = group == 0 ? Vec::zero() : Vec::load(c + column);
        Vec::store(c + column,
                   Vec::fma(Vec::load(sums + column), Vec::load(scales + column), before));
      }
  }

  const PanelProduct& p_;
  const bool short_groups_;
  Prefetch prefetch_;
  const std::byte* first_row_;
  const int64_t row_stride_;
  std::byte* sums_;  // of a block, or of two tiles
  Tiles tiles_;
  int64_t block_rows_ = 0;
  bool two_ = false;  // tiles of rows in the block
};

static_assert(kMinTileRows > OpI8::kTileRows && kMinTileRows > OpBf16::kTileRows,
              "with fewer rows a slice is all of K");

inline void tile_integer_product(const PanelProduct& p) {
  const PanelLayout layout = panel_layout(p.format, p.k);
  if (has_blocks(p.format))
    return with_blocks(p.format, [&]<Format kFormat>() {
      many_rows_by_blocks<kFormat, TileUnit<OpSpreadOf<kFormat>>>(p, layout);
    });
  switch (p.format) {
    case Format::kI8:
      return whole_row_product<TileUnit<OpI8>>(p, layout);
    case Format::kI8G32:
      return grouped_product<TileUnit<OpI8>>(p, layout);
    case Format::kU4G32:
      return spread_product<TileUnit<OpU4Bytes>>(p, layout);
    default:
      return spread_product<TileUnit<OpI4Bytes>>(p, layout);
  }
}

// Few rows and many must give the same bits, so both are added up as tiles do.
inline void tile_bf16_product(const PanelProduct& p) {
  const TileArithmetic arithmetic;
  if (p.rows < kMinTileRows) return bf16_product<OpBf16Apart>(p);
  const PanelLayout layout = panel_layout(p.format, p.k);
  switch (p.format) {
    case Format::kBf16:
      return float_product<TileUnit<OpBf16Apart>>(p, layout);
    case Format::kMxF4:
      return e2m1_product<TileUnit<OpBf16Apart>>(p, layout);
    default:
      return e4m3_product<TileUnit<OpBf16Apart>>(p, layout);
  }
}
