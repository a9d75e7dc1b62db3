// Tiles: a few rows times a few vectors of columns, held in registers over a run of K.
// Included inside an anonymous namespace, after product_steps.inl.h: see isa/*.cpp.

// A slice of K of a float panel.
struct FloatRun {
  const std::byte* weights;
  int64_t row_offset;  // bytes
  int64_t steps;
  bool first;
};

template <typename Op>
struct FloatTile {
  using Run = FloatRun;
  static constexpr int kTileRows = Op::kTileRows, kTileVecs = Op::kTileVecs;
  template <int kRows, int kVecs>
  static void run(const Run& run, const std::byte* const* rows, int64_t column, float* c,
                  Prefetch& prefetch) {
    Vec::F acc[kRows][kVecs];
    const std::byte* x[kRows];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      x[r] = rows[r] + run.row_offset;
#pragma GCC unroll 8
      for (int v = 0; v < kVecs; ++v)
        acc[r][v] = run.first ? Vec::zero() : Vec::load(c + r * kPanel + v * Vec::kWidth);
    }
    if constexpr (requires { Op::kStepsApart; })
      accumulate_apart<Op, kRows, kVecs>(x, run.weights + column * 4, run.steps, prefetch, acc);
    else
      accumulate<Op, kRows, kVecs>(x, run.weights + column * 4, run.steps, prefetch, acc);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
      for (int v = 0; v < kVecs; ++v) Vec::store(c + r * kPanel + v * Vec::kWidth, acc[r][v]);
  }
};

// Groups [first_group, end_group) of an integer panel, or a part of one group: then `c` holds the
// integer sums until the part that ends the group.
struct IntegerRun {
  const std::byte* weights;  // of the first step
  int64_t weights_stride;    // bytes from group to group
  const std::byte* scales;   // of the first group
  int64_t scales_stride;
  int64_t row_offset;  // bytes, of the first step
  int64_t row_scales;  // bytes, of the scales of group 0
  int64_t row_sums;
  int64_t first_group;
  int64_t end_group;
  int64_t steps;  // per group, or of the part
  bool begins_group;
  bool ends_group;
};

template <typename Op>
struct IntegerTile {
  using Run = IntegerRun;
  static constexpr int kTileRows = Op::kTileRows, kTileVecs = Op::kTileVecs;
  template <int kRows, int kVecs>
  static void run(const Run& run, const std::byte* const* rows, int64_t column, float* c,
                  Prefetch& prefetch) {
    const std::byte* x[kRows];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) x[r] = rows[r] + run.row_offset;
    const std::byte* weights = run.weights + column * 4;
    const std::byte* scales = run.scales + column * Op::Scales::kBytes;
    // Few sums stay in registers from group to group, many in `c`.
    constexpr bool kKeep = kRows * kVecs <= 8;
    Vec::F kept[kKeep ? kRows : 1][kKeep ? kVecs : 1];
    if constexpr (kKeep) {
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
        for (int v = 0; v < kVecs; ++v)
          kept[r][v] =
              run.first_group == 0 ? Vec::zero() : Vec::load(c + r * kPanel + v * Vec::kWidth);
    }
    for (int64_t group = run.first_group; group < run.end_group; ++group) {
      if (prefetch.ahead != 0) {
        if constexpr (kWholePanel<kVecs>) prefetch.front = scales + prefetch.ahead;
        prefetch.nearer<kVecs * Vec::kWidth * Op::Scales::kBytes, kFetchLevel<kVecs>>();
      }
      Dot::I acc[kRows][kVecs];
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const Dot::I start = Op::Scales::start(rows[r] + run.row_sums + group * 4);
#pragma GCC unroll 8
        for (int v = 0; v < kVecs; ++v)
          acc[r][v] = run.begins_group ? start : Dot::load(c + r * kPanel + v * Vec::kWidth);
      }
      accumulate<Op, kRows, kVecs>(x, weights, run.steps, prefetch, acc);
      if (!run.ends_group) {
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
          for (int v = 0; v < kVecs; ++v) Dot::store(c + r * kPanel + v * Vec::kWidth, acc[r][v]);
        return;
      }
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const Vec::F a_scale =
            Vec::set(reinterpret_cast<const float*>(rows[r] + run.row_scales)[group]);
        const std::byte* row_sum = rows[r] + run.row_sums + group * 4;
        x[r] += run.steps * Op::kRowBytes;
#pragma GCC unroll 8
        for (int v = 0; v < kVecs; ++v) {
          const typename Op::Scales w(scales + v * Vec::kWidth * Op::Scales::kBytes);
          if constexpr (kKeep) {
            kept[r][v] = w.added(kept[r][v], acc[r][v], row_sum, a_scale);
          } else {
            float* target = c + r * kPanel + v * Vec::kWidth;
            const Vec::F before = group == 0 ? Vec::zero() : Vec::load(target);
            Vec::store(target, w.added(before, acc[r][v], row_sum, a_scale));
          }
        }
      }
      weights += run.weights_stride;
      scales += run.scales_stride;
    }
    if constexpr (kKeep) {
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
        for (int v = 0; v < kVecs; ++v) Vec::store(c + r * kPanel + v * Vec::kWidth, kept[r][v]);
    }
  }
};

// Whole groups of a bf16 panel with an fp32 scale per group and column.
struct ScaledRun {
  const std::byte* weights;
  const std::byte* scales;  // of the first group
  int64_t scales_stride;    // bytes from group to group
  int64_t row_offset;       // bytes, of the first step
  int64_t first_group;
  int64_t end_group;
  int64_t steps;  // per group
};

template <typename Op>
struct ScaledTile {
  using Run = ScaledRun;
  static constexpr int kTileRows = Op::kTileRows, kTileVecs = Op::kTileVecs;
  template <int kRows, int kVecs>
  static void run(const Run& run, const std::byte* const* rows, int64_t column, float* c,
                  Prefetch& prefetch) {
    const std::byte* x[kRows];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) x[r] = rows[r] + run.row_offset;
    const std::byte* weights = run.weights + column * 4;
    const std::byte* scales = run.scales + column * 4;
    for (int64_t group = run.first_group; group < run.end_group; ++group) {
      Vec::F acc[kRows][kVecs];
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
        for (int v = 0; v < kVecs; ++v) acc[r][v] = Vec::zero();
      if constexpr (requires { Op::kStepsApart; })
        accumulate_apart<Op, kRows, kVecs>(x, weights, run.steps, prefetch, acc);
      else
        accumulate<Op, kRows, kVecs>(x, weights, run.steps, prefetch, acc);
#pragma GCC unroll 8
      for (int v = 0; v < kVecs; ++v) {
        const Vec::F scale = Vec::load(reinterpret_cast<const float*>(scales) + v * Vec::kWidth);
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
          float* target = c + r * kPanel + v * Vec::kWidth;
          const Vec::F before = group == 0 ? Vec::zero() : Vec::load(target);
          Vec::store(target, Vec::fma(acc[r][v], scale, before));
        }
      }
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) x[r] += run.steps * Op::kRowBytes;
      weights += run.steps * Op::kPanelBytes;
      scales += run.scales_stride;
    }
  }
};

// All groups of a panel of small floats, which are taken apart in registers.
struct CodeRun {
  const std::byte* groups;
  int64_t count;
  int64_t group_bytes;
  int64_t scale_bytes;
};

// The sums run in order, each waiting for the one before: with few rows it takes more columns to
// keep the multipliers busy.
template <typename Op, int kTheTileVecs>
struct CodeTile {
  using Run = CodeRun;
  static constexpr int kTileRows = 2, kTileVecs = kTheTileVecs;
  template <int kRows, int kVecs>
  static void run(const Run& run, const std::byte* const* rows, int64_t column, float* c,
                  Prefetch& prefetch) {
    constexpr int64_t kVecBytes = Vec::kWidth * 4;
    Vec::F acc[kRows][kVecs];
    int64_t offset = 0;
    for (int64_t g = 0; g < run.count; ++g) {
      const std::byte* group = run.groups + g * run.group_bytes;
      typename Op::Scale scale[kVecs];
#pragma GCC unroll 8
      for (int v = 0; v < kVecs; ++v) scale[v] = Op::scale(group, column + v * Vec::kWidth);
      if (Op::kScaledSums || g == 0) {
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
          for (int v = 0; v < kVecs; ++v) acc[r][v] = Vec::zero();
      }
      const std::byte* end = group + run.group_bytes;
      for (const std::byte* line = group + run.scale_bytes; line < end;
           line += Op::kPanelBytes, offset += Op::kRowBytes) {
        const std::byte* weights = line + column * 4;
        prefetch.front = weights + prefetch.ahead;
        prefetch.nearer<kVecs * kVecBytes, 3>();
#pragma GCC unroll 8
        for (int first = 0; first < kVecs; first += 2) {  // four and their parts fill the registers
          CodeWords words[2];
#pragma GCC unroll 2
          for (int v = 0; v < 2; ++v) words[v] = load_words(weights + (first + v) * kVecBytes);
#pragma GCC unroll 8
          for (int part = 0; part < Op::kParts; ++part)
#pragma GCC unroll 2
            for (int v = first; v < first + 2; ++v) {
              const typename Op::Word w = Op::step(words[v - first], part, scale[v]);
#pragma GCC unroll 8
              for (int r = 0; r < kRows; ++r)
                acc[r][v] = Op::dot(acc[r][v], w, Op::row(rows[r] + offset, part));
            }
        }
      }
      if constexpr (Op::kScaledSums) {
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
          for (int v = 0; v < kVecs; ++v) {
            float* target = c + r * kPanel + v * Vec::kWidth;
            const Vec::F before = g == 0 ? Vec::zero() : Vec::load(target);
            Vec::store(target, Vec::fma(acc[r][v], scale[v], before));
          }
      }
    }
    if constexpr (!Op::kScaledSums) {
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
        for (int v = 0; v < kVecs; ++v) Vec::store(c + r * kPanel + v * Vec::kWidth, acc[r][v]);
    }
  }
};

template <typename Tile, int kRows>
inline void tile_columns(const typename Tile::Run& run, const std::byte* const* rows, int64_t cols,
                         float* c, Prefetch& prefetch) {
  constexpr int64_t kTileCols = Tile::kTileVecs * Vec::kWidth;
  if constexpr (requires { run.weights; }) prefetch.front = run.weights + prefetch.ahead;
  if constexpr (kTileCols == kPanel) {
    if (2 * cols <= kPanel) {  // small routers
      Tile::template run<kRows, Tile::kTileVecs / 2>(run, rows, 0, c, prefetch);
      return;
    }
  }
  for (int64_t column = 0; column < cols; column += kTileCols)
    Tile::template run<kRows, Tile::kTileVecs>(run, rows, column, c + column, prefetch);
}

// All rows over one run. Rows are split evenly (7 = 4 + 3, not 6 + 1), because the small tiles wait
// for the latency of the multiply-add.
template <typename Tile>
inline void rows_over(const typename Tile::Run& run, const std::byte* const* rows, int64_t count,
                      int64_t cols, float* c, Prefetch& prefetch) {
  const int64_t tiles = (count + Tile::kTileRows - 1) / Tile::kTileRows;
  int64_t row = 0;
  for (int64_t t = 0; t < tiles; ++t) {
    const int64_t end = count * (t + 1) / tiles;
    const std::byte* const* x = rows + row;
    float* c_row = c + row * kPanel;
    switch (end - row) {
      case 1:
        tile_columns<Tile, 1>(run, x, cols, c_row, prefetch);
        break;
      case 2:
        tile_columns<Tile, 2>(run, x, cols, c_row, prefetch);
        break;
      case 3:
        if constexpr (Tile::kTileRows >= 3) tile_columns<Tile, 3>(run, x, cols, c_row, prefetch);
        break;
      case 4:
        if constexpr (Tile::kTileRows >= 4) tile_columns<Tile, 4>(run, x, cols, c_row, prefetch);
        break;
      case 5:
        if constexpr (Tile::kTileRows >= 5) tile_columns<Tile, 5>(run, x, cols, c_row, prefetch);
        break;
      default:
        if constexpr (Tile::kTileRows >= 6) tile_columns<Tile, 6>(run, x, cols, c_row, prefetch);
        break;
    }
    row = end;
  }
}
