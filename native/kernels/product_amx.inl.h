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

// Multiplies all rows of a product by a slice of one panel, in blocks of 32 rows and 32 columns.
template <typename TheOp>
class TileUnit {
 public:
  using Op = TheOp;
  static constexpr bool kWindows = false;  // gathered rows are used by panel after panel
  static constexpr int64_t kFloatSliceK = kSliceK / 2;  // as many bytes as a slice of int8

  TileUnit(const PanelProduct& p, const PanelLayout& layout)
      : p_(p),
        prefetch_(spread_evenly(p, p.panels * ((p.rows + kBlockRows - 1) / kBlockRows) *
                                       (kPanel / kBlockColumns) *
                                       (layout.k / (Op::kSteps * kTileSteps)))),
        rows_(p.scratch + kSliceK * kPanel),  // after the slice that some products take apart
        sums_(rows_ + kMaxRows * kSliceBytes) {
    static_assert((kSliceK + kMaxRows * kSliceBytes / kPanel + kBlockRows * 4) * kPanel <=
                  kProductScratch);
  }

  void multiply(const FloatRun& run, int64_t panel) {
    gather(run.row_offset, run.steps * Op::kRowBytes);
    for (int64_t row = 0; row < p_.rows; row += kBlockRows) {
      begin_block(row, run.steps);
      for (int64_t column = 0; column < columns(p_, panel); column += kBlockColumns) {
        float* c = results(p_, panel) + row * kPanel + column;
        begin_sums(run.first, c);
        accumulate<Operand::kBf16>(rows_ + row * kSliceBytes, run.weights + column * 4, run.steps);
        store_sums(c);
      }
    }
  }

  void multiply(const IntegerRun& run, int64_t panel) {
    const int64_t group_bytes = run.steps * Op::kRowBytes;
    gather(run.row_offset, (run.end_group - run.first_group) * group_bytes);
    for (int64_t row = 0; row < p_.rows; row += kBlockRows) {
      begin_block(row, run.steps);
      for (int64_t column = 0; column < columns(p_, panel); column += kBlockColumns) {
        float* c = results(p_, panel) + row * kPanel + column;
        const std::byte* a = rows_ + row * kSliceBytes;
        const std::byte* weights = run.weights + column * 4;
        const std::byte* scales = run.scales + column * Op::Scales::kBytes;
        for (int64_t group = run.first_group; group < run.end_group; ++group) {
          begin_sums(run.begins_group, c);
          accumulate<Operand::kI8>(a, weights, run.steps);
          if (!run.ends_group) {
            store_sums(c);
            break;
          }
          store_sums(sums_);
          scale_block(run, group, scales, row, c);
          a += group_bytes;
          weights += run.weights_stride;
          scales += run.scales_stride;
        }
      }
    }
  }

  void multiply(const ScaledRun& run, int64_t panel) {
    const int64_t group_bytes = run.steps * Op::kRowBytes;
    gather(run.row_offset, (run.end_group - run.first_group) * group_bytes);
    for (int64_t row = 0; row < p_.rows; row += kBlockRows) {
      begin_block(row, run.steps);
      for (int64_t column = 0; column < columns(p_, panel); column += kBlockColumns) {
        float* c = results(p_, panel) + row * kPanel + column;
        const std::byte* a = rows_ + row * kSliceBytes;
        const std::byte* weights = run.weights + column * 4;
        const std::byte* scales = run.scales + column * 4;
        for (int64_t group = run.first_group; group < run.end_group; ++group) {
          begin_sums(true, c);
          accumulate<Operand::kBf16>(a, weights, run.steps);
          store_sums(sums_);
          scale_sums(group, reinterpret_cast<const float*>(scales), c);
          a += group_bytes;
          weights += run.steps * Op::kPanelBytes;
          scales += run.scales_stride;
        }
      }
    }
  }

 private:
  static constexpr int64_t kBlockRows = 32, kBlockColumns = 32;
  static constexpr int64_t kTileRows = 16, kTileColumns = 16;
  static constexpr int64_t kTileSteps = 16;        // of K: 64 bytes of a row
  static constexpr int64_t kSliceBytes = kSliceK;  // of a row
  static constexpr int64_t kStride = kPanel * 4;   // bytes between rows of sums and of weights

  // Brings a slice of the rows side by side; where they come from, rows a power of two apart would
  // share a few sets of the cache.
  void gather(int64_t offset, int64_t bytes) {
    if (offset == gathered_) return;  // the slice of the panel before
    gathered_ = offset;
    for (int64_t r = 0; r < p_.rows; ++r)
      __builtin_memcpy(rows_ + r * kSliceBytes, p_.x_rows[r] + offset,
                       static_cast<std::size_t>(bytes));
  }

  void begin_block(int64_t row, int64_t steps) {
    const int64_t left = p_.rows - row;
    block_rows_ = left < kBlockRows ? left : kBlockRows;
    two_ = block_rows_ > kTileRows;
    tiles_.configure(two_ ? kTileRows : block_rows_, two_ ? block_rows_ - kTileRows : 0,
                     4 * (steps < kTileSteps ? steps : kTileSteps));
  }

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

  void store_sums(void* sums) {
    float* c = static_cast<float*>(sums);
    tiles_.template store_c<0, 0>(c, kStride);
    tiles_.template store_c<0, 1>(c + kTileColumns, kStride);
    if (!two_) return;
    tiles_.template store_c<1, 0>(c + kTileRows * kPanel, kStride);
    tiles_.template store_c<1, 1>(c + kTileRows * kPanel + kTileColumns, kStride);
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
      prefetch_.some();
      tiles_.template load_b<0>(weights, kStride);
      tiles_.template load_a<0>(a, kSliceBytes);
      multiply_tile<kOperand, 0, 0>();
      tiles_.template load_b<1>(weights + kTileColumns * 4, kStride);
      multiply_tile<kOperand, 0, 1>();
      if (two_) {
        tiles_.template load_a<1>(a + kTileRows * kSliceBytes, kSliceBytes);
        multiply_tile<kOperand, 1, 0>();
        multiply_tile<kOperand, 1, 1>();
      }
      a += kTileSteps * 4;
      weights += kTileSteps * kStride;
    }
  }

  // The end of a group, as IntegerTile does it.
  void scale_block(const IntegerRun& run, int64_t group, const std::byte* scales, int64_t row,
                   float* c) const {
    for (int64_t r = 0; r < block_rows_; ++r, c += kPanel) {
      const std::byte* x = p_.x_rows[row + r];
      const int32_t row_sum = reinterpret_cast<const int32_t*>(x + run.row_sums)[group];
      const Dot::I start = Op::Scales::start(row_sum);
      const Vec::F a_scale = Vec::set(reinterpret_cast<const float*>(x + run.row_scales)[group]);
      for (int64_t column = 0; column < kBlockColumns; column += Vec::kWidth) {
        const Dot::I sum = Dot::add(start, Dot::load(sums_ + r * kStride + column * 4));
        const typename Op::Scales w(scales + column * Op::Scales::kBytes);
        const Vec::F before = group == 0 ? Vec::zero() : Vec::load(c + column);
        const Vec::F value = w.value(sum, Vec::set(static_cast<float>(row_sum)));
        Vec::store(c + column, Vec::fma(value, Vec::mul(w.scale, a_scale), before));
      }
    }
  }

  // The end of a group, as ScaledTile does it.
  void scale_sums(int64_t group, const float* scales, float* c) const {
    const float* sums = reinterpret_cast<const float*>(sums_);
    for (int64_t r = 0; r < block_rows_; ++r, c += kPanel, sums += kPanel)
      for (int64_t column = 0; column < kBlockColumns; column += Vec::kWidth) {
        const Vec::F before = group == 0 ? Vec::zero() : Vec::load(c + column);
        Vec::store(c + column,
                   Vec::fma(Vec::load(sums + column), Vec::load(scales + column), before));
      }
  }

  const PanelProduct& p_;
  Prefetch prefetch_;
  std::byte* rows_;
  std::byte* sums_;  // int32 or fp32 [kBlockRows][kPanel]
  Tiles tiles_;
  int64_t gathered_ = -1;
  int64_t block_rows_ = 0;
  bool two_ = false;  // tiles of rows in the block
};

// From here on tiles win: below, the vector product already keeps up with memory, needs no tile
// set-up and reads the rows in place.
constexpr int64_t kMinTileRows = 8;
static_assert(kMinTileRows > OpI8::kTileRows && kMinTileRows > OpBf16::kTileRows,
              "with fewer rows a slice is all of K");

inline void tile_product(const PanelProduct& p) {
  const PanelLayout layout = panel_layout(p.format, p.k);
  switch (p.format) {
    case Format::kBf16:
      float_product<TileUnit<OpBf16Apart>>(p, layout);
      break;
    case Format::kI8:
      whole_row_product<TileUnit<OpI8>>(p, layout);
      break;
    case Format::kI8G32:
      grouped_product<TileUnit<OpI8>>(p, layout);
      break;
    case Format::kF8G128:
      e4m3_product<TileUnit<OpBf16Apart>>(p, layout);
      break;
    case Format::kMxF4:
      e2m1_product<TileUnit<OpBf16Apart>>(p, layout);
      break;
    case Format::kU4G32:
      spread_product<TileUnit<OpU4Bytes>>(p, layout);
      break;
    default:
      spread_product<TileUnit<OpI4Bytes>>(p, layout);
  }
}

void panel_product(const PanelProduct& p) {
  const bool tiles = p.format != Format::kF32 && p.rows >= kMinTileRows;
  if (info(p.format).operand != Operand::kBf16) {
    if (!tiles) return vector_product(p);
    return tile_product(p);
  }
  const TileArithmetic arithmetic;
  if (!tiles) return vector_product<OpBf16Apart>(p);
  tile_product(p);
}
