// Integer and bf16 products of four lanes without special instructions.
// Included inside an anonymous namespace, after vec_scalar.inl.h: see isa/*.cpp.

struct Dot {
  static constexpr const char* kName = "plain, 4 lanes";
  using I = Vec::I;
  typedef int16_t Shorts __attribute__((vector_size(16)));
  typedef uint8_t Bytes __attribute__((vector_size(16)));
  static constexpr int kTileRows = 2;
  static constexpr int kTileVecs = 2;
  static constexpr int32_t kBias8 = 128;  // what dot8 leaves in the sum for each unit of a

  static I add(I a, I b) { return a + b; }
  static I set(int32_t x) { return I{x, x, x, x}; }
  static I load(const void* p) {
    I x;
    __builtin_memcpy(&x, p, sizeof x);
    return x;
  }
  static void store(void* p, I x) { __builtin_memcpy(p, &x, sizeof x); }
  static I row(const std::byte* p) {
    int32_t word;
    __builtin_memcpy(&word, p, 4);
    return set(word);
  }
  static I weights8(I w) { return w; }
  static I low_nibbles(I w) { return w & 0x0f0f0f0f; }
  static I high_nibbles(I w) { return (w >> 4) & 0x0f0f0f0f; }
  // Four products per lane: bytes 0 to 3 of w, unsigned, with those of a, signed.
  static I dot8(I acc, I w, I a) {
    for (int shift = 0; shift < 32; shift += 8)
      acc += ((w >> shift) & 0xff) * (a << (24 - shift) >> 24);
    return acc;
  }
  static I dot4(I acc, I w, I a) { return dot8(acc, w, a); }
  // Of each lane, with its sign.
  static I low_half(I x) { return x << 16 >> 16; }
  static Vec::F to_float(I x) { return __builtin_convertvector(x, Vec::F); }
};
