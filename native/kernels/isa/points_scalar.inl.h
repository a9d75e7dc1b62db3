// Weights that are looked up in a grid, lane by lane.
// Included inside an anonymous namespace, after decode.inl.h: see isa/*.cpp.

// Sixteen weights of each column: points[p] is the number of the p-th point of each column, of
// eight weights, which are two words of the grid.
struct Points {
  // As four words of four weights: 64 plus or minus what the grid says; minus where a bit of
  // `signs` is one, the lowest first.
  static void with_signs(const uint32_t* grid, const CodeWords* points, CodeWords signs,
                         CodeWords* out) {
    for (int i = 0; i < 4; ++i) out[i] = around_64(words_at(grid, points, i), signs >> (4 * i));
  }

  // As words: what the grid says, less a byte of `offsets` for each point.
  static void with_offsets(const uint32_t* grid, const CodeWords* points, CodeWords offsets,
                           CodeWords* out) {
    for (int i = 0; i < 4; ++i)
      out[i] = words_at(grid, points, i) - (offsets >> (i / 2 * 8) & 255u) * 0x01010101u;
  }

  // Products with one row of activations, of which `sums` are to be had.
  struct Rows {
    Dot::I of;
    void add(const Rows& more) { of = Dot::add(of, more.of); }
    Dot::I sums() const { return of; }
  };

  // Of the weights of `with_signs`, without the 64.
  static Rows products_with_signs(const uint32_t* grid, const CodeWords* points, CodeWords signs,
                                  const std::byte* row) {
    CodeWords words[4];
    with_signs(grid, points, signs, words);
    int32_t total = 0;
    for (int i = 0; i < 16; ++i) total += static_cast<int8_t>(row[i]);
    return products(words, row, Dot::set(-64 * total));
  }

  // Of the weights of `with_offsets`.
  static Rows products_with_offsets(const uint32_t* grid, const CodeWords* points,
                                    CodeWords offsets, const std::byte* row) {
    CodeWords words[4];
    with_offsets(grid, points, offsets, words);
    return products(words, row, Dot::set(0));
  }

 private:
  static Rows products(const CodeWords* words, const std::byte* row, Dot::I sum) {
    for (int i = 0; i < 4; ++i)
      sum = Dot::dot4(sum, reinterpret_cast<Dot::I>(words[i]), Dot::row(row + 4 * i));
    return {sum};
  }

  static CodeWords words_at(const uint32_t* grid, const CodeWords* points, int i) {
    CodeWords words;
    for (int lane = 0; lane < Vec::kWidth; ++lane)
      words[lane] = grid[points[i / 2][lane] * 2 + static_cast<uint32_t>(i % 2)];
    return words;
  }
};
