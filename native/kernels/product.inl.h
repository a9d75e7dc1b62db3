// Packed rows times weight panels. Rows are cut into tiles, K into slices that stay in a cache
// while all tiles pass over them. Included inside an anonymous namespace, after
// product_tiles.inl.h: see isa/*.cpp.

// A slice of K of 8-bit weights for many rows; 4-bit ones take half as many bytes.
constexpr int64_t kSliceBytes = 32 * 1024;

inline float* results(const PanelProduct& p, int64_t panel) {
  return p.c + panel * p.rows * kPanel;
}
inline int64_t columns(const PanelProduct& p, int64_t panel) {
  return panel + 1 == p.panels ? p.cols : kPanel;
}

// What the caller wants next, in equal shares over a product that fetches so often.
inline Prefetch spread_evenly(const PanelProduct& p, int64_t fetches) {
  const int64_t bytes = p.next[0].bytes + p.next[1].pieces * p.next[1].bytes;
  return {p.next[0].data, p.next[0].data + p.next[0].bytes, round_up(bytes / (fetches + 1), 64),
          p.next[1]};
}

// PanelProduct::window: what the tiles read next themselves, a slice ahead (while the first tile
// passes over a slice, fetching goes on at the rate of all tiles), then the head of next[0].
inline Prefetch follow(const PanelProduct& p, const PanelLayout& layout, int64_t fetches) {
  const int64_t bytes = p.panels * layout.panel_bytes;
  const int64_t ahead = bytes < kSliceBytes ? bytes : kSliceBytes;
  const Fetch after = {p.next[0].data, p.next[0].bytes < ahead ? p.next[0].bytes : ahead};
  return {p.panel + ahead, p.panel + bytes, round_up(bytes / (fetches + 1), 64), after};
}

// Where one tile has all rows, every weight is used once, and its slice of K is all of it; or,
// where strips of columns follow one another, what stays in L1 beside the next slice.
constexpr int64_t kStripBytes = 4 * 1024;
template <typename Op>
constexpr bool kOneStrip = kWholePanel<Op::kTileVecs>;

// The processor's own prefetching falls behind where much is done per byte, and does not follow
// strips. A window of 2 KiB into L2 (whole panels) gains 0 to 20 % beside none, one of 4 KiB into
// L1 loses as much; strips take twice as long without theirs.
template <typename Op>
inline Prefetch read_ahead() {
  return {nullptr, nullptr, 0, {}, kOneStrip<Op> ? 2048 : kStripBytes};
}

template <typename Op>
inline int64_t one_tile_k(const PanelLayout& layout) {
  return kOneStrip<Op> ? layout.k : kStripBytes / Op::kPanelBytes * Op::kSteps;
}

// Multiplies all rows by a slice of one panel. The products below cut panels for such a unit;
// kInPlace: they are read where they are. Slices of K: of panels of 8 bits, of bf16, and of what is
// taken apart, in bytes of a column.
template <typename TheOp, bool kInPlace = true>
class VectorUnit {
 public:
  using Op = TheOp;
  static constexpr bool kWindows = true;
  static constexpr int64_t kSliceK = kSliceBytes / kPanel, kScratchK = kSliceK;
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
  void multiply(const ScaledRun& run, int64_t panel) {
    rows_over<ScaledTile<Op>>(run, p_.x_rows, p_.rows, columns(p_, panel), results(p_, panel),
                              prefetch_);
  }

 private:
  static Prefetch prefetch(const PanelProduct& p, const PanelLayout& layout) {
    const int64_t tiles = (p.rows + Op::kTileRows - 1) / Op::kTileRows;
    if (tiles == 1) return kInPlace ? read_ahead<Op>() : Prefetch{};
    const int64_t fetches = p.panels * tiles * (kPanel / (Op::kTileVecs * Vec::kWidth)) *
                            (layout.k / (Op::kSteps * kStepsPerFetch));
    return p.window ? follow(p, layout, fetches) : spread_evenly(p, fetches);
  }

  const PanelProduct& p_;
  Prefetch prefetch_;
};

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
  const int64_t slice = p.rows <= Op::kTileRows      ? one_tile_k<Op>(layout)
                        : Unit::kWindows && p.window ? kSliceBytes / Op::kPanelBytes * Op::kSteps
                                                     : Unit::kFloatSliceK;
  over_slices<Unit>(p, layout.k, slice, [&](int64_t i, int64_t k0, int64_t k1) {
    const std::byte* panel = p.panel + i * layout.panel_bytes;
    unit.multiply(
        FloatRun{panel + k0 / Op::kSteps * Op::kPanelBytes, k0 / Op::kSteps * Op::kRowBytes,
                 (k1 - k0) / Op::kSteps, k0 == 0 && !p.accumulate},
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
  const int64_t slice_k = p.rows <= Op::kTileRows ? one_tile_k<Op>(layout) : Unit::kSliceK;
  const int64_t slice = slice_k < layout.group_k ? 1 : slice_k / layout.group_k;
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
  const int64_t slice = Unit::kScratchK / layout.group_k;
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

template <typename Op, typename OpOfBytes>
inline void nibble_product(const PanelProduct& p, const PanelLayout& layout) {
  if (p.rows <= Dot::kTileRows)
    grouped_product<VectorUnit<Op>>(p, layout);
  else
    spread_product<VectorUnit<OpOfBytes>>(p, layout);
}

// 8-bit weights with one scale per column: a slice is a part of the only group.
template <typename Unit>
inline void whole_row_product(const PanelProduct& p, const PanelLayout& layout) {
  using Op = typename Unit::Op;
  Unit unit(p, layout);
  const RowLayout row = row_layout(p.format, p.k);
  const int64_t slice = p.rows <= Op::kTileRows ? one_tile_k<Op>(layout) : Unit::kSliceK;
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

// Calls body(panel, first group, end group, bf16 panel) for slices of small floats, each taken
// apart once for all rows.
template <typename Unit, typename Decode, typename Body>
inline void over_decoded(const PanelProduct& p, const PanelLayout& layout, const Decode& decode,
                         const Body& body) {
  const bool one_tile = p.rows <= Unit::Op::kTileRows;
  const int64_t slice_k = Unit::kScratchK / (one_tile ? 4 : 2);
  const int64_t ahead = one_tile ? kStripBytes : 0;
  over_slices<Unit>(
      p, layout.groups, slice_k / layout.group_k, [&](int64_t i, int64_t first, int64_t end) {
        const std::byte* groups = p.panel + i * layout.panel_bytes + first * layout.group_bytes;
        decode(groups, layout, end - first, ahead, p.scratch);
        body(i, groups, first, end);
      });
}

// Sums of groups are scaled: an fp32 scale times an e4m3 is no bf16.
template <typename Unit>
inline void e4m3_product(const PanelProduct& p, const PanelLayout& layout) {
  Unit unit(p, layout);
  over_decoded<Unit>(
      p, layout, decode_e4m3, [&](int64_t i, const std::byte* groups, int64_t first, int64_t end) {
        unit.multiply(ScaledRun{p.scratch, groups, layout.group_bytes, first * layout.group_k * 2,
                                first, end, layout.group_k / Unit::Op::kSteps},
                      i);
      });
}

// A power of two times an e2m1 is a bf16: from there on it is the product of bf16 panels, with the
// same bits.
template <typename Unit>
inline void e2m1_product(const PanelProduct& p, const PanelLayout& layout) {
  Unit unit(p, layout);
  over_decoded<Unit>(
      p, layout, decode_e2m1, [&](int64_t i, const std::byte*, int64_t first, int64_t end) {
        unit.multiply(FloatRun{p.scratch, first * layout.group_k * 2,
                               (end - first) * layout.group_k / Unit::Op::kSteps, first == 0},
                      i);
      });
}

// Up to so many rows small floats are taken apart in registers, which gains a quarter with one row;
// with four, a slice taken apart in L1 gains 7 to 13 % (AVX2).
constexpr int64_t kCodeRows = 2;

template <typename Op>
inline void code_product(const PanelProduct& p, const PanelLayout& layout) {
  constexpr int kAllVecs = kPanel / Vec::kWidth;
  constexpr int kManyVecs = 2 * Op::kTileVecs < kAllVecs ? 2 * Op::kTileVecs : kAllVecs;
  Prefetch prefetch = {nullptr, nullptr, 0, {}, kStripBytes};
  for (int64_t i = 0; i < p.panels; ++i) {
    const CodeRun run = {p.panel + i * layout.panel_bytes, layout.groups, layout.group_bytes,
                         layout.scale_bytes};
    rows_over<CodeTile<Op, kManyVecs>>(run, p.x_rows, p.rows, columns(p, i), results(p, i),
                                       prefetch);
  }
}

// K of a panel of blocks that is taken apart at a time: a block of the large types, some of the
// small ones.
constexpr int64_t kBlocksK = 256;

// So many bytes before they are used blocks are fetched.
constexpr int64_t kBlocksAhead = 2048;

// Groups of a block that are written out, so that their shifts are constants. Where speed is no
// promise that would only keep a compiler busy.
#if defined(__AVX2__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
constexpr int kWrittenOut = 16;
#else
constexpr int kWrittenOut = 1;
#endif

// Few rows: a strip of columns after the other.
template <Format kFormat, int kRows>
inline void few_rows_by_blocks(const PanelProduct& p, const PanelLayout& layout) {
  using Op = OpBlock<kFormat>;
  constexpr FormatInfo kInfo = info(kFormat);
  constexpr int kVecs = kStrip / Vec::kWidth;
  constexpr int64_t kGroup = kInfo.group, kGroups = kInfo.block.k / kGroup;
  constexpr int64_t kLines = (kInfo.block.bytes / 4 + kGroups - 1) / kGroups;  // of a group, about
  const RowLayout row = row_layout(kFormat, p.k);
  for (int64_t i = 0; i < p.panels; ++i) {
    const std::byte* panel = p.panel + i * layout.panel_bytes;
    float* const c = results(p, i);
    const int64_t cols = columns(p, i);
    for (int64_t column = 0; column < cols; column += kStrip) {
      Vec::F kept[kRows][kVecs];
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
        for (int v = 0; v < kVecs; ++v) kept[r][v] = Vec::zero();
      const std::byte* ahead = panel + block_place(layout, 0, column).words + kBlocksAhead;
      for (int64_t b = 0; b < layout.blocks; ++b) {
        const BlockStrip<kFormat> strip(panel, layout, b, column);
        const auto add_group = [&](int64_t g) __attribute__((always_inline)) {
          const int64_t group = b * kGroups + g;
#pragma GCC unroll 8
          for (int64_t line = 0; line < kLines; ++line, ahead += kStrip * 4)
            __builtin_prefetch(ahead, 0, 3);
          Dot::I acc[kRows][kVecs];
#pragma GCC unroll 4
          for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
            for (int v = 0; v < kVecs; ++v)
              acc[r][v] = Op::Scales::start(p.x_rows[r] + row.sums + group * 4);
          if constexpr (kHasGrid<kFormat> && kRows == 1) {
#pragma GCC unroll 4
            for (int v = 0; v < kVecs; ++v)
              acc[0][v] = sums_of(strip.of[v], g, p.x_rows[0] + group * kGroup, acc[0][v]);
          } else {
            CodeWords found[kVecs][kGroup / 4];
#pragma GCC unroll 4
            for (int v = 0; v < kVecs; ++v) words_of(strip.of[v], g, found[v]);
#pragma GCC unroll 8
            for (int64_t w = 0; w < kGroup / 4; ++w) {
              Dot::I words[kVecs];
#pragma GCC unroll 4
              for (int v = 0; v < kVecs; ++v) words[v] = Op::integers(found[v][w]);
#pragma GCC unroll 4
              for (int r = 0; r < kRows; ++r) {
                const Dot::I x = Dot::row(p.x_rows[r] + group * kGroup + 4 * w);
#pragma GCC unroll 4
                for (int v = 0; v < kVecs; ++v) acc[r][v] = Op::dot(acc[r][v], words[v], x);
              }
            }
          }
#pragma GCC unroll 4
          for (int r = 0; r < kRows; ++r) {
            const std::byte* const sum = p.x_rows[r] + row.sums + group * 4;
            const Vec::F x_scale =
                Vec::set(reinterpret_cast<const float*>(p.x_rows[r] + row.scales)[group]);
#pragma GCC unroll 4
            for (int v = 0; v < kVecs; ++v)
              kept[r][v] = Op::scales(strip.of[v], g).added(kept[r][v], acc[r][v], sum, x_scale);
          }
        };
        if constexpr (kHasGrid<kFormat>) {  // written out these are 27 KB of code, and slower
#pragma GCC unroll 1
          for (int64_t g = 0; g < kGroups; ++g) add_group(g);
        } else {
#pragma GCC unroll kWrittenOut
          for (int64_t g = 0; g < kGroups; ++g) add_group(g);
        }
      }
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
        for (int v = 0; v < kVecs; ++v)
          Vec::store(c + r * kPanel + column + v * Vec::kWidth, kept[r][v]);
    }
  }
}

// Some blocks of a panel as integers of a byte, [steps of 4][kPanel] words, and scales,
// [groups][kPanel], each row followed by one of minimums.
template <Format kFormat>
inline void spread_blocks(const std::byte* panel, const PanelLayout& layout, int64_t first,
                          int64_t count, std::byte* words, std::byte* scales) {
  using Op = OpBlock<kFormat>;
  constexpr FormatInfo kInfo = info(kFormat);
  constexpr int64_t kWords = kInfo.group / 4, kGroups = kInfo.block.k / kInfo.group;
  for (int64_t b = 0; b < count; ++b)
    for (int64_t column = 0; column < kPanel; column += Vec::kWidth) {
      const BlockColumns<kFormat> columns(panel, block_place(layout, first + b, column));
      for (int64_t g = 0; g < kGroups; ++g) {
        const int64_t group = b * kGroups + g;
        Op::scales(columns, g).store(scales + group * Op::Scales::kStride + column * 4);
        CodeWords found[kWords];
        words_of(columns, g, found);
#pragma GCC unroll 8
        for (int64_t w = 0; w < kWords; ++w)
          store_words(words + ((group * kWords + w) * kPanel + column) * 4, found[w]);
      }
    }
}

// Many rows: each slice is taken apart once.
template <Format kFormat, typename Unit>
inline void many_rows_by_blocks(const PanelProduct& p, const PanelLayout& layout) {
  using Op = typename Unit::Op;
  constexpr FormatInfo kInfo = info(kFormat);
  constexpr int64_t kGroups = kBlocksK / kInfo.group;
  static_assert(kBlocksK * kPanel + kGroups * Op::Scales::kStride <= 32 * 1024);
  Unit unit(p, layout);
  const RowLayout row = row_layout(kFormat, p.k);
  std::byte* const words = p.scratch;
  std::byte* const scales = words + kBlocksK * kPanel;
  over_slices<Unit>(p, layout.groups, kGroups, [&](int64_t i, int64_t first, int64_t end) {
    const int64_t block = first * kInfo.group / kInfo.block.k;
    const int64_t count = (end - first) * kInfo.group / kInfo.block.k;
    spread_blocks<kFormat>(p.panel + i * layout.panel_bytes, layout, block, count, words, scales);
    IntegerRun run{};
    run.weights = words;
    run.weights_stride = kInfo.group * kPanel;
    run.scales = scales;
    run.scales_stride = Op::Scales::kStride;
    run.row_offset = first * kInfo.group;
    run.row_scales = row.scales;
    run.row_sums = row.sums;
    run.first_group = first;
    run.end_group = end;
    run.steps = kInfo.group / Op::kSteps;
    run.begins_group = run.ends_group = true;
    unit.multiply(run, i);
  });
}

// With more than one row the large blocks, whose groups are written out, do no better in registers
// than taken apart into L1 once, and take a compiler twice as long.
constexpr int32_t kSmallBlock = 32;

template <Format kFormat>
inline void product_by_blocks(const PanelProduct& p, const PanelLayout& layout) {
  if (p.rows == 1) return few_rows_by_blocks<kFormat, 1>(p, layout);
  if constexpr (info(kFormat).block.k <= kSmallBlock) {
    if (p.rows == 2) return few_rows_by_blocks<kFormat, 2>(p, layout);
    if (p.rows == 3) return few_rows_by_blocks<kFormat, 3>(p, layout);
    if (p.rows == 4) return few_rows_by_blocks<kFormat, 4>(p, layout);
  }
  many_rows_by_blocks<kFormat, VectorUnit<OpSpreadOf<kFormat>, false>>(p, layout);
}

inline void block_product(const PanelProduct& p) {
  const PanelLayout layout = panel_layout(p.format, p.k);
  with_blocks(p.format, [&]<Format kFormat>() { product_by_blocks<kFormat>(p, layout); });
}

// fp16 for many rows, or with a last step of K that has no other in its word: rows are read in
// place, and end there. Each slice is widened once.
inline void half_product(const PanelProduct& p, const PanelLayout& layout) {
  using Unit = VectorUnit<OpF32, false>;
  constexpr int64_t kLine = kPanel * 4, kVecBytes = Vec::kWidth * 4;
  Unit unit(p, layout);
  over_slices<Unit>(p, p.k, kSliceBytes / kLine, [&](int64_t i, int64_t k0, int64_t k1) {
    const std::byte* words = p.panel + i * layout.panel_bytes + k0 / 2 * kLine;
    for (std::byte* out = p.scratch; k0 + (out - p.scratch) / kLine < k1; out += 2 * kLine)
      for (int64_t at = 0; at < kLine; at += kVecBytes, words += kVecBytes) {
        const CodeWords pair = load_words(words);
        Vec::store(reinterpret_cast<float*>(out + at), float_of_half(pair & 0xffffu));
        Vec::store(reinterpret_cast<float*>(out + kLine + at), float_of_half(pair >> 16));
      }
    unit.multiply(FloatRun{p.scratch, k0 * 4, k1 - k0, k0 == 0 && !p.accumulate}, i);
  });
}

// Of activations in fp32.
inline void float32_product(const PanelProduct& p) {
  const PanelLayout layout = panel_layout(p.format, p.k);
  if (p.format == Format::kF16)
    return p.rows <= OpF16::kTileRows && p.k == layout.k
               ? float_product<VectorUnit<OpF16>>(p, layout)
               : half_product(p, layout);
  float_product<VectorUnit<OpF32>>(p, layout);
}

template <typename Op>
inline void bf16_product(const PanelProduct& p) {
  const PanelLayout layout = panel_layout(p.format, p.k);
  if (p.format == Format::kBf16) return float_product<VectorUnit<Op>>(p, layout);
  if constexpr (!requires { Op::kStepsApart; }) {
    if (p.rows <= kCodeRows)
      return p.format == Format::kMxF4 ? code_product<OpE2m1>(p, layout)
                                       : code_product<OpE4m3>(p, layout);
  }
  if (p.format == Format::kMxF4)
    e2m1_product<VectorUnit<Op, false>>(p, layout);
  else
    e4m3_product<VectorUnit<Op, false>>(p, layout);
}

inline void integer_product(const PanelProduct& p) {
  if (has_blocks(p.format)) return block_product(p);
  const PanelLayout layout = panel_layout(p.format, p.k);
  switch (p.format) {
    case Format::kI8:
      return whole_row_product<VectorUnit<OpI8>>(p, layout);
    case Format::kI8G32:
      return grouped_product<VectorUnit<OpI8>>(p, layout);
    case Format::kU4G32:
      return nibble_product<OpU4, OpU4Bytes>(p, layout);
    default:
      return nibble_product<OpI4, OpI4Bytes>(p, layout);
  }
}
