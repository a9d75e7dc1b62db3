// The tiles of tiles_amx.inl.h in plain C++, so that the code around them is tested on every
// machine. Integer sums are the same bits. Sums of bf16 products are added in the order that Intel
// documents for TDPBF16PS; they can differ from it only where a number is subnormal, which AMX
// takes as zero. Included inside an anonymous namespace: see isa/amx_emulated.cpp.

class Tiles {
 public:
  void configure(int64_t rows0, int64_t rows1, int64_t step_bytes) {
    rows_[0] = rows0;
    rows_[1] = rows1;
    step_bytes_ = step_bytes;
  }

  template <int kM, int kN>
  void zero_c() {
    __builtin_memset(c_[kM][kN], 0, sizeof c_[kM][kN]);
  }
  template <int kM, int kN>
  void load_c(const void* c, int64_t stride) {
    load(c_[kM][kN], c, stride, rows_[kM], kRowBytes);
  }
  template <int kM, int kN>
  void store_c(void* c, int64_t stride) {
    for (int64_t m = 0; m < rows_[kM]; ++m)
      __builtin_memcpy(static_cast<std::byte*>(c) + m * stride, c_[kM][kN] + m * kRowBytes,
                       kRowBytes);
  }
  template <int kM>
  void load_a(const void* rows, int64_t stride) {
    load(a_[kM], rows, stride, rows_[kM], step_bytes_);
  }
  template <int kN>
  void load_b(const void* weights, int64_t stride) {
    load(b_[kN], weights, stride, step_bytes_ / 4, kRowBytes);
  }

  template <int kM, int kN>
  void multiply_i8() {
    for (int64_t m = 0; m < rows_[kM]; ++m) {
      int32_t sums[16];
      __builtin_memcpy(sums, c_[kM][kN] + m * kRowBytes, sizeof sums);
      for (int64_t k = 0; k < step_bytes_; ++k) {
        const int32_t a = static_cast<int8_t>(a_[kM][m * kRowBytes + k]);
        const std::byte* b = b_[kN] + k / 4 * kRowBytes + k % 4;
        for (int n = 0; n < 16; ++n) sums[n] += a * static_cast<int32_t>(b[4 * n]);
      }
      __builtin_memcpy(c_[kM][kN] + m * kRowBytes, sums, sizeof sums);
    }
  }

  template <int kM, int kN>
  void multiply_bf16() {
    for (int64_t m = 0; m < rows_[kM]; ++m) {
      float sums[16], parts[2][16] = {};
      __builtin_memcpy(sums, c_[kM][kN] + m * kRowBytes, sizeof sums);
      for (int64_t k = 0; k < step_bytes_ / 2; ++k) {
        // The product of two bf16 is exact in fp32: two operations round like one fused.
        const float a = widened(a_[kM] + m * kRowBytes + 2 * k);
        const std::byte* b = b_[kN] + k / 2 * kRowBytes + k % 2 * 2;
        for (int n = 0; n < 16; ++n) parts[k % 2][n] += a * widened(b + 4 * n);
      }
      for (int n = 0; n < 16; ++n) sums[n] += parts[0][n] + parts[1][n];
      __builtin_memcpy(c_[kM][kN] + m * kRowBytes, sums, sizeof sums);
    }
  }

 private:
  static constexpr int64_t kRowBytes = 64;
  using Tile = std::byte[16 * kRowBytes];

  static void load(Tile& tile, const void* source, int64_t stride, int64_t rows, int64_t bytes) {
    for (int64_t r = 0; r < rows; ++r)
      __builtin_memcpy(tile + r * kRowBytes, static_cast<const std::byte*>(source) + r * stride,
                       static_cast<std::size_t>(bytes));
  }
  static float widened(const std::byte* p) {
    uint16_t bits;
    __builtin_memcpy(&bits, p, 2);
    const uint32_t word = static_cast<uint32_t>(bits) << 16;
    float value;
    __builtin_memcpy(&value, &word, 4);
    return value;
  }

  Tile c_[2][2], a_[2], b_[2];
  int64_t rows_[2] = {0, 0}, step_bytes_ = 0;
};

struct TileArithmetic {
  TileArithmetic() {}
};
