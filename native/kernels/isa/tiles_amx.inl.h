// Matrix products of AMX: two by two tiles of sums C (16 rows of 16 columns), two of rows A and two
// of weights B. Included inside an anonymous namespace: see isa/amx.cpp.

class Tiles {
 public:
  Tiles() = default;
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;
  // Leaves no tile state to whatever this thread runs next.
  ~Tiles() { _tile_release(); }

  // A0 and C0x get `rows0` rows, A1 and C1x `rows1` (0: not used), at most 16. A step of K is
  // `step_bytes` of a row, at most 64. What the tiles held is lost if anything changes.
  void configure(int64_t rows0, int64_t rows1, int64_t step_bytes) {
    if (rows0 == rows0_ && rows1 == rows1_ && step_bytes == step_bytes_) return;
    rows0_ = rows0;
    rows1_ = rows1;
    step_bytes_ = step_bytes;
    Config config{};
    config.palette = 1;
    set(config, 0, rows0, 64);
    set(config, 1, rows0, 64);
    set(config, 2, rows1, rows1 > 0 ? 64 : 0);
    set(config, 3, rows1, rows1 > 0 ? 64 : 0);
    set(config, 4, rows0, step_bytes);
    set(config, 5, rows1, rows1 > 0 ? step_bytes : 0);
    set(config, 6, step_bytes / 4, 64);
    set(config, 7, step_bytes / 4, 64);
    written();
    _tile_loadconfig(&config);
  }

  template <int kM, int kN>
  void zero_c() {
    if constexpr (kM == 0 && kN == 0) _tile_zero(0);
    if constexpr (kM == 0 && kN == 1) _tile_zero(1);
    if constexpr (kM == 1 && kN == 0) _tile_zero(2);
    if constexpr (kM == 1 && kN == 1) _tile_zero(3);
  }
  // Strides are bytes from row to row.
  template <int kM, int kN>
  void load_c(const void* c, int64_t stride) {
    written();
    if constexpr (kM == 0 && kN == 0) _tile_loadd(0, c, stride);
    if constexpr (kM == 0 && kN == 1) _tile_loadd(1, c, stride);
    if constexpr (kM == 1 && kN == 0) _tile_loadd(2, c, stride);
    if constexpr (kM == 1 && kN == 1) _tile_loadd(3, c, stride);
  }
  template <int kM, int kN>
  void store_c(void* c, int64_t stride) {
    if constexpr (kM == 0 && kN == 0) _tile_stored(0, c, stride);
    if constexpr (kM == 0 && kN == 1) _tile_stored(1, c, stride);
    if constexpr (kM == 1 && kN == 0) _tile_stored(2, c, stride);
    if constexpr (kM == 1 && kN == 1) _tile_stored(3, c, stride);
  }
  template <int kM>
  void load_a(const void* rows, int64_t stride) {
    written();
    if constexpr (kM == 0) _tile_loadd(4, rows, stride);
    if constexpr (kM == 1) _tile_loadd(5, rows, stride);
  }
  template <int kN>
  void load_b(const void* weights, int64_t stride) {
    written();
    if constexpr (kN == 0) _tile_loadd(6, weights, stride);
    if constexpr (kN == 1) _tile_loadd(7, weights, stride);
  }

  // C += A B. int8 rows, weights of unsigned bytes, sums in int32.
  template <int kM, int kN>
  void multiply_i8() {
    if constexpr (kM == 0 && kN == 0) _tile_dpbsud(0, 4, 6);
    if constexpr (kM == 0 && kN == 1) _tile_dpbsud(1, 4, 7);
    if constexpr (kM == 1 && kN == 0) _tile_dpbsud(2, 5, 6);
    if constexpr (kM == 1 && kN == 1) _tile_dpbsud(3, 5, 7);
  }
  // Both bf16, sums in fp32.
  template <int kM, int kN>
  void multiply_bf16() {
    if constexpr (kM == 0 && kN == 0) _tile_dpbf16ps(0, 4, 6);
    if constexpr (kM == 0 && kN == 1) _tile_dpbf16ps(1, 4, 7);
    if constexpr (kM == 1 && kN == 0) _tile_dpbf16ps(2, 5, 6);
    if constexpr (kM == 1 && kN == 1) _tile_dpbf16ps(3, 5, 7);
  }

 private:
  struct alignas(64) Config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
  };
  static void set(Config& config, int tile, int64_t rows, int64_t row_bytes) {
    config.rows[tile] = static_cast<uint8_t>(rows);
    config.row_bytes[tile] = static_cast<uint16_t>(row_bytes);
  }
  // GCC's tile loads do not say that they read memory.
  static void written() { __asm__ volatile("" ::: "memory"); }

  int64_t rows0_ = 0, rows1_ = 0, step_bytes_ = 0;
};

// While this lives, vector arithmetic takes and leaves subnormal numbers as zero and rounds to
// nearest even, as tiles always do.
class TileArithmetic {
 public:
  TileArithmetic() { _mm_setcsr(0x9fc0); }
  TileArithmetic(const TileArithmetic&) = delete;
  TileArithmetic& operator=(const TileArithmetic&) = delete;
  ~TileArithmetic() { _mm_setcsr(before_); }

 private:
  unsigned before_ = _mm_getcsr();
};
