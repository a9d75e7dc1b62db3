// The two products of attention. `Vec` is the vector unit of the including ISA file.
// Included inside an anonymous namespace: see isa/*.cpp.
//
// bf16 is read as 32-bit words of two neighbouring dimensions and widened in registers, which
// halves the loads, and the shuffles of transposing keys. Keys are transposed to
// [words][kKeyGroup], values are read where they lie; their sums come out as vectors of even and of
// odd dimensions.

template <int kCount>
struct Rows {
  static constexpr int kValue = kCount;
};

// Calls tile(Rows<n>(), row) for runs of n rows that cover [first, end). Rows are split evenly
// (7 = 4 + 3, not 6 + 1), because small tiles wait for the latency of the multiply-add.
template <typename Tile>
inline void for_row_tiles(int64_t first, int64_t end, const Tile& tile) {
  const int64_t rows = end - first;
  const int64_t tiles = (rows + Vec::kTileRows - 1) / Vec::kTileRows;
  int64_t row = 0;
  for (int64_t t = 0; t < tiles; ++t) {
    const int64_t next = rows * (t + 1) / tiles;
    const int64_t n = next - row, at = first + row;
    row = next;
    if (n == 1) {
      tile(Rows<1>(), at);
    } else if (n == 2) {
      tile(Rows<2>(), at);
    } else if constexpr (Vec::kTileRows > 2) {
      if (n == 3)
        tile(Rows<3>(), at);
      else if (n == 4)
        tile(Rows<4>(), at);
      else if (n == 5)
        tile(Rows<5>(), at);
      else
        tile(Rows<6>(), at);
    }
  }
}

// Vectors of columns per row: few rows take more of them, to hide the latency.
constexpr int vecs_of(int rows) {
  return 3 * rows <= Vec::kTileRows ? 2 * Vec::kTileVecs : Vec::kTileVecs;
}

// Memory to fetch towards the caches while something else is computed: `bytes` of each row of
// [begin, end). Both halves of the rows are fetched side by side, because a single stream of reads
// does not fill the memory's queues; two lines at a time, because a burst fills the core's own
// queue of misses and stops the loads of the products.
class Ahead {
 public:
  Ahead(const uint8_t* const* rows, int64_t offset, int64_t begin, int64_t end, int64_t bytes)
      : rows_(rows),
        offset_(offset),
        bytes_(bytes),
        row_(begin),
        half_(end > begin ? (end - begin + 1) / 2 : 0),
        stop_(begin + half_),
        last_(end - 1) {
    if (half_ > 0) start_rows();
  }
  // Calls of fetch() that fetch everything.
  int64_t calls() const { return half_ * 2 * ((bytes_ + kPiece - 1) / kPiece); }
  // From now on every `every`th call of fetch() does something, until `calls` have.
  void allow(int64_t calls, int64_t every) {
    left_ += calls;
    every_ = wait_ = every;
  }
  // What is still allowed, at once.
  void finish() {
    every_ = wait_ = 1;
    while (left_ > 0) fetch();
  }

  // Always inline: a call inside the products would spill their accumulators.
  [[gnu::always_inline]] void fetch() {
    if (--wait_ > 0) return;
    wait_ = every_;
    if (left_ <= 0) return;
    --left_;
    if (row_ >= stop_) return;
    __builtin_prefetch(at_[turn_], 0, 3);
    __builtin_prefetch(at_[turn_] + 64, 0, 3);
    at_[turn_] += kPiece;
    turn_ ^= 1;
    if (turn_ != 0) return;
    fetched_ += kPiece;
    if (fetched_ >= bytes_ && ++row_ < stop_) start_rows();
  }

 private:
  static constexpr int64_t kPiece = 128;

  void start_rows() {
    fetched_ = 0;
    at_[0] = rows_[row_] + offset_;
    at_[1] = rows_[row_ + half_ < last_ ? row_ + half_ : last_] + offset_;
  }

  const uint8_t* const* rows_;
  int64_t offset_;
  int64_t bytes_;
  int64_t row_;  // of the first half
  int64_t half_;
  int64_t stop_;  // where the first half ends
  int64_t last_;
  int64_t fetched_ = 0;  // bytes of the current rows
  int64_t left_ = 0;
  int64_t every_ = 1;
  int64_t wait_ = 1;
  int64_t turn_ = 0;
  const uint8_t* at_[2] = {};
};

// The dimensions of one step of the inner product: one of fp32, two of bf16.
template <typename Element>
struct Words {
  static constexpr int kDims = sizeof(Element) == 4 ? 1 : 2;
  template <int kDim>
  static Vec::F widen(const float* p) {
    if constexpr (kDims == 1)
      return Vec::load(p);
    else if constexpr (kDim == 0)
      return Vec::pair_even(reinterpret_cast<const uint32_t*>(p));
    else
      return Vec::pair_odd(reinterpret_cast<const uint32_t*>(p));
  }
};

// scores[kRows][kVecs vectors of tokens] = queries * transposed keys.
template <typename Element, int kRows, int kVecs>
inline void score_tile(const float* queries, int64_t query_stride, const float* keys, int64_t words,
                       float* scores, Ahead& ahead) {
  using F = Vec::F;
  using W = Words<Element>;
  constexpr int kWidth = Vec::kWidth;
  F acc[kRows][kVecs];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < kVecs; ++v) acc[r][v] = Vec::zero();
  for (int64_t w = 0; w < words; ++w, keys += kKeyGroup) {
    ahead.fetch();
    F b[kVecs];
#pragma GCC unroll 8
    for (int v = 0; v < kVecs; ++v) b[v] = W::template widen<0>(keys + v * kWidth);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const F a = Vec::set(queries[r * query_stride + w * W::kDims]);
#pragma GCC unroll 8
      for (int v = 0; v < kVecs; ++v) acc[r][v] = Vec::fma(a, b[v], acc[r][v]);
    }
    if constexpr (W::kDims == 2) {
#pragma GCC unroll 8
      for (int v = 0; v < kVecs; ++v) b[v] = W::template widen<1>(keys + v * kWidth);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const F a = Vec::set(queries[r * query_stride + w * W::kDims + 1]);
#pragma GCC unroll 8
        for (int v = 0; v < kVecs; ++v) acc[r][v] = Vec::fma(a, b[v], acc[r][v]);
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < kVecs; ++v) Vec::store(scores + r * kKeyStep + v * kWidth, acc[r][v]);
}

// sums[kRows][kVecs vectors] += weights * values of tokens [begin, end). `kVecs` counts vectors of
// words; with kTail, one vector of which only the first `tail` words exist.
template <typename Element, int kRows, int kVecs, bool kTail>
inline void value_tile(const float* weights, const uint8_t* const* tokens_at, int64_t offset,
                       int64_t begin, int64_t end, int64_t tail, float* sums, int64_t sum_stride,
                       Ahead& ahead) {
  using F = Vec::F;
  using W = Words<Element>;
  constexpr int kWidth = Vec::kWidth;
  constexpr int kAll = kVecs * W::kDims;
  F acc[kRows][kAll];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < kAll; ++v) acc[r][v] = Vec::load(sums + r * sum_stride + v * kWidth);
  for (int64_t t = begin; t < end; ++t) {
    ahead.fetch();
    if constexpr (kRows <= 2) ahead.fetch();
    const float* row = reinterpret_cast<const float*>(tokens_at[t] + offset);
    float copy[kWidth];
    if constexpr (kTail) {
      Vec::store(copy, Vec::load_first(row, tail));
      row = copy;
    }
    F b[kAll];
#pragma GCC unroll 8
    for (int v = 0; v < kVecs; ++v) {
      b[v * W::kDims] = W::template widen<0>(row + v * kWidth);
      if constexpr (W::kDims == 2) b[v * 2 + 1] = W::template widen<1>(row + v * kWidth);
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const F a = Vec::set(weights[r * kKeyStep + t]);
#pragma GCC unroll 8
      for (int v = 0; v < kAll; ++v) acc[r][v] = Vec::fma(a, b[v], acc[r][v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < kAll; ++v) Vec::store(sums + r * sum_stride + v * kWidth, acc[r][v]);
}

// All columns of the values from `word` on, in tiles of kVecs vectors of words, then smaller ones.
template <typename Element, int kRows, int kVecs>
inline void value_columns(const float* weights, const uint8_t* const* tokens_at, int64_t offset,
                          int64_t begin, int64_t end, int64_t word, int64_t words, float* sums,
                          int64_t sum_stride, Ahead& ahead) {
  constexpr int64_t kStep = kVecs * Vec::kWidth;
  constexpr int kDims = Words<Element>::kDims;
  for (; word + kStep <= words; word += kStep)
    value_tile<Element, kRows, kVecs, false>(weights, tokens_at, offset + word * 4, begin, end, 0,
                                             sums + word * kDims, sum_stride, ahead);
  if (word == words) return;
  if constexpr (kVecs > 1)
    value_columns<Element, kRows, kVecs / 2>(weights, tokens_at, offset, begin, end, word, words,
                                             sums, sum_stride, ahead);
  else
    value_tile<Element, kRows, 1, true>(weights, tokens_at, offset + word * 4, begin, end,
                                        words - word, sums + word * kDims, sum_stride, ahead);
}
