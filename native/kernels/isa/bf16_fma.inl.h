// bf16 products in fp32: both sides are widened exactly, the even step of a pair comes first.
// Included inside an anonymous namespace, after decode.inl.h: see isa/*.cpp.

struct Bf16 {
  static constexpr const char* kName = Vec::kName;
  using Word = Vec::F;
  static constexpr int kTileRows = Vec::kTileRows;
  static constexpr int kTileVecs = Vec::kTileVecs;
  static constexpr int kParts = 2;

  static Word weights(const std::byte* p, int part) {
    const uint32_t* words = reinterpret_cast<const uint32_t*>(p);
    return part == 0 ? Vec::pair_even(words) : Vec::pair_odd(words);
  }
  static Word row(const std::byte* p, int part) {
    uint16_t bits;
    __builtin_memcpy(&bits, p + 2 * part, 2);
    return Vec::set(from_bf16(bits));
  }
  static Vec::F dot(Vec::F acc, Word w, Word a) { return Vec::fma(a, w, acc); }

  static Word of_pairs(CodeWords pairs, int part) {
    return reinterpret_cast<Word>(part == 0 ? pairs << 16 : pairs & 0xffff0000u);
  }
  // Small floats and their scales, a step at a time.
  using E2m1Scale = Vec::F;
  static E2m1Scale e2m1_scale(const std::byte* scales) { return half_of_e8m0(scales); }
  static Word e2m1(CodeWords words, int part, E2m1Scale scale) {
    return Vec::mul(Codes::twice_e2m1(words, part), scale);
  }
};
