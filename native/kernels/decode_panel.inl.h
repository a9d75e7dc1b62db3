// Frozen weights as the panels of training's products: any format taken apart into bf16, and 64
// steps of K of a panel transposed. Included inside an anonymous namespace, after decode.inl.h and
// quantize.inl.h: see isa/*.cpp.

// Nearest bf16 of two steps as the words of a bf16 panel; the values are finite.
inline CodeWords bf16_words(Vec::F even, Vec::F odd) {
  const CodeWords low = reinterpret_cast<CodeWords>(even) + 0x8000u;
  const CodeWords high = reinterpret_cast<CodeWords>(odd) + 0x8000u;
  return low >> 16 | (high & 0xffff0000u);
}

// What the integers of a group are multiplied by, and what is added to the products, per column.
struct GroupScales {
  Vec::F factor[kPanel / Vec::kWidth];
  Vec::F offset[kPanel / Vec::kWidth];

  GroupScales(Format format, const std::byte* scales) {
    for (int64_t v = 0; v < kPanel / Vec::kWidth; ++v) {
      const std::byte* at = scales + v * Vec::kWidth * bytes_of(info(format).scale);
      Vec::F zero = Vec::set(static_cast<float>(info(format).bias));
      if (has_zeros(format)) {
        const CodeWords words = load_words(at);
        factor[v] = reinterpret_cast<Vec::F>(words & 0xffff0000u);
        // The low half with its sign.
        zero = Vec::sub(to_floats((words & 0xffffu) ^ 0x8000u), Vec::set(32768.0f));
        zero = Vec::mul(zero, Vec::set(kZeroUnit));
      } else {
        factor[v] = Vec::load_bf16(reinterpret_cast<const uint16_t*>(at));
      }
      offset[v] = Vec::sub(Vec::zero(), Vec::mul(zero, factor[v]));
    }
  }
};

// Lines of integers of one group. kBits 8: four steps to a word; 4: eight, byte i holding step i
// low and step 4 + i high.
template <int kBits>
inline void decode_integers(const std::byte* weights, int64_t lines, const GroupScales& scales,
                            std::byte* out) {
  constexpr uint32_t kMask = (1u << kBits) - 1;
  constexpr int64_t kVecs = kPanel / Vec::kWidth, kVecBytes = Vec::kWidth * 4;
  decode_lines<16 / kBits>(weights, lines, 0, out, [&](CodeWords words, int pair, int64_t at) {
    static_assert(kVecs * kVecBytes == kPanel * 4);
    const int64_t v = at / kVecBytes;
    const int shift = pair % 2 * 16 + pair / 2 * 4;
    const auto value = [&](int by) {
      return Vec::fma(to_floats(words >> by & kMask), scales.factor[v], scales.offset[v]);
    };
    return bf16_words(value(shift), value(shift + 8));
  });
}

// e4m3 is exact in bf16; times its fp32 scale it is rounded again.
inline void scale_words(std::byte* words, int64_t lines, const std::byte* scales) {
  constexpr int64_t kLine = kPanel * 4, kVecBytes = Vec::kWidth * 4;
  for (int64_t at = 0; at < kLine; at += kVecBytes) {
    const Vec::F scale = Vec::load(reinterpret_cast<const float*>(scales + at));
    for (int64_t line = 0; line < lines; ++line) {
      std::byte* place = words + line * kLine + at;
      const CodeWords pair = load_words(place);
      store_words(place, bf16_words(Vec::mul(reinterpret_cast<Vec::F>(pair << 16), scale),
                                    Vec::mul(reinterpret_cast<Vec::F>(pair & 0xffff0000u), scale)));
    }
  }
}

// Blocks to bf16 or fp32, `out` as [steps][kPanel] words of pairs or single ones. Products and sums
// are rounded one by one.
template <Format kFormat, bool kFloats>
inline void decode_blocks(const DecodePanel& p) {
  using Columns = BlockColumns<kFormat>;
  constexpr int64_t kGroup = info(kFormat).group, kVecBytes = Vec::kWidth * 4;
  constexpr int64_t kLine = kPanel * 4, kBlockK = info(kFormat).block.k;
  constexpr int32_t kBias = info(kFormat).bias;
  const PanelLayout layout = panel_layout(kFormat, p.k);
  std::byte* out = p.out;
  for (int64_t k = p.first_k; k < p.first_k + p.count_k; k += kGroup) {
    const int64_t group = k % kBlockK / kGroup;
    for (int64_t at = 0; at < kLine; at += kVecBytes) {
      const Columns columns(p.panel, block_place(layout, k / kBlockK, at / 4));
      const Vec::F scale = columns.scale(group);
      std::byte* place = out + at;
      CodeWords words[kGroup / 4];
      words_of(columns, group, words);
      for (const CodeWords word : words) {
        const auto value = [&](int shift) {
          const Vec::F number =
              Vec::sub(to_floats(word >> shift & 255u), Vec::set(static_cast<float>(kBias)));
          if constexpr (has_minimums(kFormat))
            return Vec::add(Vec::mul(number, scale), columns.minimum(group));
          else
            return Vec::mul(number, scale);
        };
        for (int shift = 0; shift < 32; shift += 16) {
          if constexpr (kFloats) {
            Vec::store(reinterpret_cast<float*>(place), value(shift));
            Vec::store(reinterpret_cast<float*>(place + kLine), value(shift + 8));
            place += 2 * kLine;
          } else {
            store_words(place, bf16_words(value(shift), value(shift + 8)));
            place += kLine;
          }
        }
      }
    }
    out += kGroup * (kFloats ? kLine : kLine / 2);
  }
}

template <bool kFloats>
inline void decode_any_blocks(const DecodePanel& p) {
  with_blocks(p.format, [&]<Format kFormat>() { decode_blocks<kFormat, kFloats>(p); });
}

void unpack_blocks(const DecodePanel& p) { decode_any_blocks<true>(p); }

inline void decode_halves(const DecodePanel& p) {
  const std::byte* weights = p.panel + p.first_k * kPanel * 2;
  for (int64_t at = 0; at < p.count_k * kPanel * 2; at += Vec::kWidth * 4) {
    const CodeWords words = load_words(weights + at);
    store_words(p.out + at, bf16_words(float_of_half(words & 0xffffu), float_of_half(words >> 16)));
  }
}

void decode_panel(const DecodePanel& p) {
  if (has_blocks(p.format)) return decode_any_blocks<false>(p);
  if (p.format == Format::kF16) return decode_halves(p);
  const PanelLayout layout = panel_layout(p.format, p.k);
  const FormatInfo& f = info(p.format);
  std::byte* out = p.out;
  for (int64_t k = p.first_k; k < p.first_k + p.count_k;) {
    const int64_t group = k / layout.group_k, within = k % layout.group_k;
    const int64_t left = p.first_k + p.count_k - k;
    const int64_t steps = layout.group_k - within < left ? layout.group_k - within : left;
    const std::byte* scales = p.panel + group * layout.group_bytes;
    const std::byte* weights = scales + layout.scale_bytes + within * kPanel * f.bits / 8;
    if (f.operand == Operand::kI8 && f.bits == 8) {
      decode_integers<8>(weights, steps / 4, GroupScales(p.format, scales), out);
    } else if (f.operand == Operand::kI8) {
      decode_integers<4>(weights, steps / 8, GroupScales(p.format, scales), out);
    } else if (p.format == Format::kMxF4) {
      decode_e2m1(scales, layout, 1, 0, out);  // groups of 32 are never cut
    } else {
      PanelLayout part = layout;
      part.scale_bytes = 0;
      part.group_k = steps;
      decode_e4m3(weights, part, 1, 0, out);
      scale_words(out, steps / 2, scales);
    }
    out += steps * kPanel * 2;
    k += steps;
  }
}

// A vector of columns times as many steps.
inline void transpose_floats(const TransposePanel& p) {
  constexpr int64_t kWidth = Vec::kWidth;
  const float* steps = reinterpret_cast<const float*>(p.steps) + p.column;
  float* out = reinterpret_cast<float*>(p.out);
  for (int64_t n = 0; n < p.columns; n += kWidth)
    for (int64_t k = 0; k < kPanel; k += kWidth) {
      Vec::F block[kWidth];
#pragma GCC unroll 16
      for (int64_t i = 0; i < kWidth; ++i)
        block[i] = k + i < p.count_k ? Vec::load(steps + (k + i) * kPanel + n) : Vec::zero();
      Vec::transpose(block);
#pragma GCC unroll 16
      for (int64_t i = 0; i < kWidth; ++i) Vec::store(out + (n + i) * kPanel + k, block[i]);
    }
}

// A word holds two steps of a column and is to hold two columns of a step. Swapping the middle
// halves of two neighbouring words does that, and puts the two steps side by side, where they
// belong: what is left is a transposition of pairs of words.
inline void transpose_bf16(const TransposePanel& p) {
  constexpr int64_t kWidth = Vec::kWidth, kPairs = kWidth / 2;
  const float* words = reinterpret_cast<const float*>(p.steps) + p.column;
  float* out = reinterpret_cast<float*>(p.out);
  for (int64_t n = 0; n < p.columns; n += kWidth)
    for (int64_t k = 0; k < kPanel; k += kWidth) {
      Vec::F block[kPairs];
#pragma GCC unroll 8
      for (int64_t i = 0; i < kPairs; ++i)
        block[i] = k < p.count_k
                       ? Vec::swap_middle_halves(Vec::load(words + (k / 2 + i) * kPanel + n))
                       : Vec::zero();
      Vec::transpose_pairs(block);
#pragma GCC unroll 8
      for (int64_t i = 0; i < kPairs; ++i) Vec::store(out + (n / 2 + i) * kPanel + k, block[i]);
    }
}

void transpose_panel(const TransposePanel& p) {
  if (p.dtype == DType::kF32)
    transpose_floats(p);
  else
    transpose_bf16(p);
}
