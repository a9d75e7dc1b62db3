// Packed rows times weight panels. `Vec`, `Dot` and `Bf16` are the units of the including ISA file.
// Included inside an anonymous namespace: see isa/*.cpp.
//
// A tile is a few rows times a few vectors of columns, held in registers over a run of K. Which
// numbers meet in a register is an Op: how a step of weights and of activations is read, and how
// they are multiplied. Rows are cut into tiles, K into slices that stay in a cache while all tiles
// pass over them.

// ---- what a step of K is, per storage ----

struct OpF32 {
  using Acc = Vec::F;
  using Word = Vec::F;
  static constexpr int kTileRows = Vec::kTileRows, kTileVecs = Vec::kTileVecs, kParts = 1;
  static constexpr int64_t kSteps = 1;                // of K
  static constexpr int64_t kRowBytes = 4;             // of a row, per step
  static constexpr int64_t kPanelBytes = kPanel * 4;  // of a panel, per step
  static Word weights(const std::byte* p, int) {
    return Vec::load(reinterpret_cast<const float*>(p));
  }
  static Word row(const std::byte* p, int) { return Vec::set(*reinterpret_cast<const float*>(p)); }
  static Acc dot(Acc acc, Word w, Word a) { return Vec::fma(a, w, acc); }
};

struct OpBf16 : Bf16 {
  using Acc = Vec::F;
  static constexpr int64_t kSteps = 2, kRowBytes = 4, kPanelBytes = kPanel * 4;
};

struct OpI8 {
  using Acc = Dot::I;
  using Word = Dot::I;
  static constexpr int kTileRows = Dot::kTileRows, kTileVecs = Dot::kTileVecs, kParts = 1;
  static constexpr int64_t kSteps = 4, kRowBytes = 4, kPanelBytes = kPanel * 4;
  static Word weights(const std::byte* p, int) { return Dot::weights8(Dot::load(p)); }
  static Word row(const std::byte* p, int) { return Dot::row(p); }
  static Acc dot(Acc acc, Word w, Word a) { return Dot::dot8(acc, w, a); }
};

// Nibbles, taken apart in registers: the low ones are the first four steps.
struct OpI4 {
  using Acc = Dot::I;
  using Word = Dot::I;
  static constexpr int kTileRows = Dot::kTileRows, kTileVecs = Dot::kTileVecs, kParts = 2;
  static constexpr int64_t kSteps = 8, kRowBytes = 8, kPanelBytes = kPanel * 4;
  static Word weights(const std::byte* p, int part) {
    return part == 0 ? Dot::low_nibbles(Dot::load(p)) : Dot::high_nibbles(Dot::load(p));
  }
  static Word row(const std::byte* p, int part) { return Dot::row(p + 4 * part); }
  static Acc dot(Acc acc, Word w, Word a) { return Dot::dot4(acc, w, a); }
};

// Nibbles that were taken apart before, one to a byte.
struct OpI4Bytes : OpI8 {
  static Word weights(const std::byte* p, int) { return Dot::load(p); }
  static Acc dot(Acc acc, Word w, Word a) { return Dot::dot4(acc, w, a); }
};

// Weights to bring closer: a few lines with every few steps of every tile, so that memory and
// multipliers are busy at the same time. Bursts would fill the miss buffers and stop the loads.
// They are asked for in L1, which hands them on to L2 when it needs the room: 4-bit weights gain 4
// to 8 % beside L2 alone, others 1 or 2 %.
constexpr int64_t kStepsPerFetch = 8;
struct Prefetch {
  const std::byte* next;
  const std::byte* end;
  int64_t share;  // bytes
  Fetch after;    // when the first range is done
  // Bytes; where not 0, each step also brings what is read so much later into L1.
  int64_t ahead = 0;
  inline __attribute__((always_inline)) void some() {
    const std::byte* stop = end - next < share ? end : next + share;
    for (; next < stop; next += 64) __builtin_prefetch(next, 0, 3);
    if (next >= end && after.bytes > 0) {
      next = after.data;
      end = after.data + after.bytes;
      after.bytes = 0;
    }
  }
};

template <int64_t kBytes>
inline void bring_near(const std::byte* data) {
#pragma GCC unroll 8
  for (int64_t i = 0; i < kBytes; i += 64) __builtin_prefetch(data + i, 0, 3);
}

// acc += rows * weights over `steps` steps.
template <typename Op, int kRows, int kVecs>
inline __attribute__((always_inline)) void accumulate(const std::byte* const* x, const std::byte* w,
                                                      int64_t steps, Prefetch& prefetch,
                                                      typename Op::Acc (&acc)[kRows][kVecs]) {
  const int64_t end = steps * Op::kRowBytes;
  for (int64_t offset = 0; offset < end;) {
    prefetch.some();
    const int64_t left = end - offset;
    const int64_t stop =
        left < kStepsPerFetch * Op::kRowBytes ? end : offset + kStepsPerFetch * Op::kRowBytes;
    for (; offset < stop; offset += Op::kRowBytes, w += Op::kPanelBytes) {
      if (prefetch.ahead != 0) bring_near<kVecs * Vec::kWidth * 4>(w + prefetch.ahead);
#pragma GCC unroll 2
      for (int part = 0; part < Op::kParts; ++part) {
        typename Op::Word words[kVecs];
#pragma GCC unroll 8
        for (int v = 0; v < kVecs; ++v) words[v] = Op::weights(w + v * Vec::kWidth * 4, part);
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
          const typename Op::Word a = Op::row(x[r] + offset, part);
#pragma GCC unroll 8
          for (int v = 0; v < kVecs; ++v) acc[r][v] = Op::dot(acc[r][v], words[v], a);
        }
      }
    }
  }
}

// One of the parts of an Op's steps.
template <typename Op, int kPart>
struct PartOf : Op {
  static constexpr int kParts = 1;
  static typename Op::Word weights(const std::byte* p, int) { return Op::weights(p, kPart); }
  static typename Op::Word row(const std::byte* p, int) { return Op::row(p, kPart); }
};

// The same where the sums of the two parts run apart over Op::kStepsApart steps, from zero, and are
// then added to each other and to acc: the order of AMX tiles.
template <typename Op, int kRows, int kVecs>
inline void accumulate_apart(const std::byte* const* rows, const std::byte* w, int64_t steps,
                             Prefetch& prefetch, Vec::F (&acc)[kRows][kVecs]) {
  const std::byte* x[kRows];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) x[r] = rows[r];
  for (int64_t step = 0; step < steps; step += Op::kStepsApart) {
    Vec::F sums[2][kRows][kVecs];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
      for (int v = 0; v < kVecs; ++v) sums[0][r][v] = sums[1][r][v] = Vec::zero();
    accumulate<PartOf<Op, 0>, kRows, kVecs>(x, w, Op::kStepsApart, prefetch, sums[0]);
    accumulate<PartOf<Op, 1>, kRows, kVecs>(x, w, Op::kStepsApart, prefetch, sums[1]);
    w += Op::kStepsApart * Op::kPanelBytes;
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      x[r] += Op::kStepsApart * Op::kRowBytes;
#pragma GCC unroll 8
      for (int v = 0; v < kVecs; ++v)
        acc[r][v] = Vec::add(acc[r][v], Vec::add(sums[0][r][v], sums[1][r][v]));
    }
  }
}

// ---- tiles ----

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
    const std::byte* scales = run.scales + column * 2;
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
      if (prefetch.ahead != 0) bring_near<kVecs * Vec::kWidth * 2>(scales + prefetch.ahead);
      Dot::I acc[kRows][kVecs];
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const int32_t* sums = reinterpret_cast<const int32_t*>(rows[r] + run.row_sums);
        const Dot::I start = Dot::set(sums[group]);
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
      Vec::F w_scale[kVecs];
#pragma GCC unroll 8
      for (int v = 0; v < kVecs; ++v)
        w_scale[v] = Vec::load_bf16(reinterpret_cast<const uint16_t*>(scales) + v * Vec::kWidth);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const Vec::F a_scale =
            Vec::set(reinterpret_cast<const float*>(rows[r] + run.row_scales)[group]);
        x[r] += run.steps * Op::kRowBytes;
#pragma GCC unroll 8
        for (int v = 0; v < kVecs; ++v) {
          const Vec::F sum = Dot::to_float(acc[r][v]);
          const Vec::F scale = Vec::mul(w_scale[v], a_scale);
          if constexpr (kKeep) {
            kept[r][v] = Vec::fma(sum, scale, kept[r][v]);
          } else {
            float* target = c + r * kPanel + v * Vec::kWidth;
            Vec::store(target, Vec::fma(sum, scale, group == 0 ? Vec::zero() : Vec::load(target)));
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

template <typename Tile, int kRows>
inline void tile_columns(const typename Tile::Run& run, const std::byte* const* rows, int64_t cols,
                         float* c, Prefetch& prefetch) {
  constexpr int64_t kTileCols = Tile::kTileVecs * Vec::kWidth;
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

// A slice of K of 8-bit weights; 4-bit ones take half as many bytes. Where one tile has all rows
// every weight is used once: then a slice is all of K, and panels are read from end to end.
constexpr int64_t kSliceBytes = 32 * 1024;
constexpr int64_t kSliceK = kSliceBytes / kPanel;

inline float* results(const PanelProduct& p, int64_t panel) {
  return p.c + panel * p.rows * kPanel;
}
inline int64_t columns(const PanelProduct& p, int64_t panel) {
  return panel + 1 == p.panels ? p.cols : kPanel;
}

// What the caller wants next, in equal shares over a product that fetches so often.
inline Prefetch spread_evenly(const PanelProduct& p, int64_t fetches) {
  const int64_t bytes = p.next[0].bytes + p.next[1].bytes;
  return {p.next[0].data, p.next[0].data + p.next[0].bytes, round_up(bytes / (fetches + 1), 64),
          p.next[1]};
}

// What a few tiles of rows read next themselves, a slice ahead (while the first tile passes over a
// slice, fetching goes on at the rate of all tiles), then the first bytes of what the caller wants.
inline Prefetch follow(const PanelProduct& p, const PanelLayout& layout, int64_t fetches) {
  const int64_t bytes = p.panels * layout.panel_bytes;
  const int64_t ahead = bytes < kSliceBytes ? bytes : kSliceBytes;
  const Fetch after = {p.next[0].data, p.next[0].bytes < ahead ? p.next[0].bytes : ahead};
  return {p.panel + ahead, p.panel + bytes, round_up(bytes / (fetches + 1), 64), after};
}

// One tile of rows reads every weight once. The processor's own prefetching follows a panel, but
// falls behind where much is done per byte: 4 KiB ahead, line by line, gains 0 to 8 % with one row
// and 5 to 35 % with six.
inline Prefetch read_ahead() { return {nullptr, nullptr, 0, {}, 4096}; }

// Multiplies all rows by a slice of one panel. The products below cut panels for such a unit.
template <typename TheOp>
class VectorUnit {
 public:
  using Op = TheOp;
  static constexpr bool kWindows = true;
  // Twice the K of integers and up to eight times the bytes: these panels pass through L2.
  static constexpr int64_t kFloatSliceK = 2 * kSliceK;

  VectorUnit(const PanelProduct& p, const PanelLayout& layout)
      : p_(p), prefetch_(prefetch(p, layout)) {}
  void multiply(const FloatRun& run, int64_t panel) {
    rows_over<FloatTile<Op>>(run, p_.x_rows, p_.rows, columns(p_, panel), results(p_, panel),
                             prefetch_);
  }
  void multiply(const IntegerRun& run, int64_t panel) {
    rows_over<IntegerTile<Op>>(run, p_.x_rows, p_.rows, columns(p_, panel), results(p_, panel),
                               prefetch_);
  }

 private:
  static Prefetch prefetch(const PanelProduct& p, const PanelLayout& layout) {
    const int64_t tiles = (p.rows + Op::kTileRows - 1) / Op::kTileRows;
    if (tiles == 1) return read_ahead();
    const int64_t fetches = p.panels * tiles * (kPanel / (Op::kTileVecs * Vec::kWidth)) *
                            (layout.k / (Op::kSteps * kStepsPerFetch));
    return p.window ? follow(p, layout, fetches) : spread_evenly(p, fetches);
  }

  const PanelProduct& p_;
  Prefetch prefetch_;
};

// ---- panels ----

// Calls body(panel, begin, end) for all slices [begin, end) of all panels.
template <typename Unit, typename Body>
inline void over_slices(const PanelProduct& p, int64_t all, int64_t slice, const Body& body) {
  const auto end_of = [&](int64_t begin) { return all < begin + slice ? all : begin + slice; };
  if (Unit::kWindows && p.window) {
    for (int64_t i = 0; i < p.panels; ++i)
      for (int64_t begin = 0; begin < all; begin += slice) body(i, begin, end_of(begin));
  } else {
    for (int64_t begin = 0; begin < all; begin += slice)
      for (int64_t i = 0; i < p.panels; ++i) body(i, begin, end_of(begin));
  }
}

template <typename Unit>
inline void float_product(const PanelProduct& p, const PanelLayout& layout) {
  using Op = typename Unit::Op;
  Unit unit(p, layout);
  const int64_t slice = p.rows <= Op::kTileRows      ? layout.k
                        : Unit::kWindows && p.window ? kSliceBytes / Op::kPanelBytes * Op::kSteps
                                                     : Unit::kFloatSliceK;
  over_slices<Unit>(p, layout.k, slice, [&](int64_t i, int64_t k0, int64_t k1) {
    const std::byte* panel = p.panel + i * layout.panel_bytes;
    unit.multiply(FloatRun{panel + k0 / Op::kSteps * Op::kPanelBytes,
                           k0 / Op::kSteps * Op::kRowBytes, (k1 - k0) / Op::kSteps, k0 == 0},
                  i);
  });
}

// Takes 4-bit weights of whole groups apart into bytes, in the order of 8-bit panels.
inline void spread_nibbles(const std::byte* weights, int64_t weights_stride, int64_t group_bytes,
                           int64_t groups, std::byte* out) {
  constexpr int64_t kVecBytes = Vec::kWidth * 4;
  for (int64_t g = 0; g < groups; ++g, weights += weights_stride)
    for (int64_t at = 0; at < group_bytes; at += OpI4::kPanelBytes, out += 2 * OpI4::kPanelBytes)
      for (int64_t v = 0; v < OpI4::kPanelBytes; v += kVecBytes) {
        const Dot::I word = Dot::load(weights + at + v);
        Dot::store(out + v, Dot::low_nibbles(word));
        Dot::store(out + OpI4::kPanelBytes + v, Dot::high_nibbles(word));
      }
}

inline IntegerRun whole_groups(const PanelLayout& layout, const RowLayout& row,
                               const std::byte* panel, int64_t first, int64_t end, int64_t step_k) {
  IntegerRun run{};
  run.scales = panel + first * layout.group_bytes;
  run.weights = run.scales + layout.scale_bytes;
  run.scales_stride = run.weights_stride = layout.group_bytes;
  run.row_offset = first * layout.group_k;
  run.row_scales = row.scales;
  run.row_sums = row.sums;
  run.first_group = first;
  run.end_group = end;
  run.steps = layout.group_k / step_k;
  run.begins_group = run.ends_group = true;
  return run;
}

// 8-bit weights whose groups are short: a slice is several groups.
template <typename Unit>
inline void grouped_product(const PanelProduct& p, const PanelLayout& layout) {
  using Op = typename Unit::Op;
  Unit unit(p, layout);
  const RowLayout row = row_layout(p.format, p.k);
  const int64_t slice = p.rows <= Op::kTileRows ? layout.groups : kSliceK / layout.group_k;
  over_slices<Unit>(p, layout.groups, slice, [&](int64_t i, int64_t first, int64_t end) {
    unit.multiply(
        whole_groups(layout, row, p.panel + i * layout.panel_bytes, first, end, Op::kSteps), i);
  });
}

// 4-bit weights for many rows: each slice is taken apart once.
template <typename Unit>
inline void spread_product(const PanelProduct& p, const PanelLayout& layout) {
  Unit unit(p, layout);
  std::byte* bytes = p.scratch;
  const RowLayout row = row_layout(p.format, p.k);
  const int64_t slice = kSliceK / layout.group_k;
  over_slices<Unit>(p, layout.groups, slice, [&](int64_t i, int64_t first, int64_t end) {
    IntegerRun run =
        whole_groups(layout, row, p.panel + i * layout.panel_bytes, first, end, Unit::Op::kSteps);
    spread_nibbles(run.weights, run.weights_stride, layout.group_bytes - layout.scale_bytes,
                   end - first, bytes);
    run.weights = bytes;
    run.weights_stride = layout.group_k * kPanel;
    unit.multiply(run, i);
  });
}

// 8-bit weights with one scale per column: a slice is a part of the only group.
template <typename Unit>
inline void whole_row_product(const PanelProduct& p, const PanelLayout& layout) {
  using Op = typename Unit::Op;
  Unit unit(p, layout);
  const RowLayout row = row_layout(p.format, p.k);
  const int64_t slice = p.rows <= Op::kTileRows ? layout.k : kSliceK;
  over_slices<Unit>(p, layout.k, slice, [&](int64_t i, int64_t k0, int64_t k1) {
    IntegerRun run = whole_groups(layout, row, p.panel + i * layout.panel_bytes, 0, 1, Op::kSteps);
    run.weights += k0 / Op::kSteps * Op::kPanelBytes;
    run.row_offset = k0;
    run.steps = (k1 - k0) / Op::kSteps;
    run.begins_group = k0 == 0;
    run.ends_group = k1 == layout.k;
    unit.multiply(run, i);
  });
}

template <typename OpOfBf16 = OpBf16>
inline void vector_product(const PanelProduct& p) {
  const PanelLayout layout = panel_layout(p.format, p.k);
  switch (p.format) {
    case Format::kF32:
      float_product<VectorUnit<OpF32>>(p, layout);
      break;
    case Format::kBf16:
      float_product<VectorUnit<OpOfBf16>>(p, layout);
      break;
    case Format::kI8:
      whole_row_product<VectorUnit<OpI8>>(p, layout);
      break;
    case Format::kI8G32:
      grouped_product<VectorUnit<OpI8>>(p, layout);
      break;
    default:
      if (p.rows <= Dot::kTileRows)
        grouped_product<VectorUnit<OpI4>>(p, layout);
      else
        spread_product<VectorUnit<OpI4Bytes>>(p, layout);
  }
}
