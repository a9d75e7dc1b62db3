// Small floats to bf16, table look-ups lane by lane.
// Included inside an anonymous namespace, after vec_scalar.inl.h: see isa/*.cpp.

struct Codes {
  using Words = Vec::U;

  // Bytes to words.
  static Words widened(const std::byte* p) {
    Words words;
    for (int lane = 0; lane < Vec::kWidth; ++lane) words[lane] = static_cast<uint32_t>(p[lane]);
    return words;
  }

  // What a table says of each byte, which is below 16.
  static Words bytes_at(const Bytes16& table, Words index) {
    for (int lane = 0; lane < Vec::kWidth; ++lane) {
      const uint32_t at = index[lane];
      index[lane] = table.at[at & 255] | uint32_t{table.at[at >> 8 & 255]} << 8 |
                    uint32_t{table.at[at >> 16 & 255]} << 16 | uint32_t{table.at[at >> 24]} << 24;
    }
    return index;
  }
  // And of each word, which is not negative.
  static Words words_at(const uint32_t* table, Words index) {
    for (int lane = 0; lane < Vec::kWidth; ++lane) index[lane] = table[index[lane]];
    return index;
  }

  static Words e4m3(Words w, int pair) {
    for (int lane = 0; lane < Vec::kWidth; ++lane) {
      const uint32_t word = w[lane] >> (8 * pair);
      w[lane] = kBf16OfE4m3.bits[word & 255] |
                static_cast<uint32_t>(kBf16OfE4m3.bits[word >> 16 & 255]) << 16;
    }
    return w;
  }
  static Words e2m1(Words w, int pair, Words exponents) {
    for (int lane = 0; lane < Vec::kWidth; ++lane) {
      const uint32_t word = w[lane] >> (4 * pair);
      w[lane] = moved(word & 15, exponents[lane]) |
                static_cast<uint32_t>(moved(word >> 16 & 15, exponents[lane])) << 16;
    }
    return w;
  }
  // 2 times a step, in fp32.
  static Vec::F twice_e2m1(Words w, int step) {
    Vec::F values;
    for (int lane = 0; lane < Vec::kWidth; ++lane)
      values[lane] = 2 * value_of_code(kE2m1, w[lane] >> (step / 2 * 4 + step % 2 * 16) & 15);
    return values;
  }

 private:
  static uint16_t moved(uint32_t code, uint32_t exponents) {
    const uint32_t by = (code & 7) == 0 ? 0 : exponents & 0xffff;
    return static_cast<uint16_t>(kBf16OfE2m1.bits[code] + by);
  }
};
