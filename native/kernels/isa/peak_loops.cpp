// No flags of its own: `target` lets each function's assembly name instructions of its ISA.
#include "../peak_loops.h"

namespace inlay::kernels {
namespace {

constexpr int kPortableAccumulators = 8;

void fp32_portable() {
  using Vector = float __attribute__((vector_size(16)));
  Vector sums[kPortableAccumulators] = {};
  Vector a = {1.0f, 1.0f, 1.0f, 1.0f}, b = {1e-8f, 1e-8f, 1e-8f, 1e-8f};
  for (int64_t round = 0; round < kPeakRounds; ++round)
    for (Vector& sum : sums) {
      sum = sum * a + b;
      __asm__ volatile("" : "+x"(sum));
    }
}

}  // namespace

const PeakLoop kFp32Portable{fp32_portable, kPeakRounds * kPortableAccumulators * 4 * 2};

#if defined(__x86_64__)
namespace {

// Bytes that are ordinary values for every instruction here: 1.0 and 6e-8 as bf16 and, nearly, as
// fp32; 128, 63 and -128, 51 as int8. Sums stay finite.
alignas(64) constexpr uint32_t kOperands[2] = {0x3f803f80, 0x33803380};

// Accumulators leave two registers for the operands and one for a product.
#define INLAY_WIDE "0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23"
#define INLAY_NARROW "0,1,2,3,4,5,6,7,8,9,10,11"
constexpr int64_t kWide = 24, kNarrow = 12;

// `step` is one multiply-add of operands `a` and `b` into register \r.
#define INLAY_PEAK_LOOP(name, isa, registers, clear, load_a, load_b, step)                     \
  __attribute__((target(isa))) void name() {                                                   \
    int64_t rounds = kPeakRounds;                                                              \
    __asm__ volatile(load_a "\n" load_b                                                        \
                            "\n"                                                               \
                            ".irp r," registers "\n" clear                                     \
                            "\n.endr\n"                                                        \
                            "1:\n"                                                             \
                            ".irp r," registers "\n" step                                      \
                            "\n.endr\n"                                                        \
                            "dec %0\n"                                                         \
                            "jnz 1b\n"                                                         \
                            "vzeroupper\n"                                                     \
                     : "+r"(rounds)                                                            \
                     : "r"(kOperands)                                                          \
                     : "cc", "memory", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", \
                       "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14",    \
                       "xmm15");                                                               \
  }

#define INLAY_PEAK_LOOP_256(name, isa, step)                                   \
  INLAY_PEAK_LOOP(name, isa, INLAY_NARROW, "vpxor %%ymm\\r,%%ymm\\r,%%ymm\\r", \
                  "vpbroadcastd (%1),%%ymm14", "vpbroadcastd 4(%1),%%ymm15", step)
// Registers above 15 are nobody's: only AVX-512 code uses them, and it keeps none across a call.
#define INLAY_PEAK_LOOP_512(name, isa, step)                                  \
  INLAY_PEAK_LOOP(name, isa, INLAY_WIDE, "vpxord %%zmm\\r,%%zmm\\r,%%zmm\\r", \
                  "vpbroadcastd (%1),%%zmm30", "vpbroadcastd 4(%1),%%zmm31", step)

INLAY_PEAK_LOOP_256(fp32_avx2, "avx2,fma", "vfmadd231ps %%ymm14,%%ymm15,%%ymm\\r")
INLAY_PEAK_LOOP_512(fp32_avx512, "avx512f", "vfmadd231ps %%zmm30,%%zmm31,%%zmm\\r")
INLAY_PEAK_LOOP_512(bf16_avx512, "avx512bf16", "vdpbf16ps %%zmm30,%%zmm31,%%zmm\\r")
INLAY_PEAK_LOOP_256(int8_avx2, "avx2",
                    "vpmaddubsw %%ymm15,%%ymm14,%%ymm13\nvpaddw %%ymm13,%%ymm\\r,%%ymm\\r")
INLAY_PEAK_LOOP_256(int8_avx2_vnni, "avxvnni", "%{vex%} vpdpbusd %%ymm15,%%ymm14,%%ymm\\r")
INLAY_PEAK_LOOP_512(int8_avx512, "avx512bw",
                    "vpmaddubsw %%zmm31,%%zmm30,%%zmm29\nvpaddw %%zmm29,%%zmm\\r,%%zmm\\r")
INLAY_PEAK_LOOP_512(int8_avx512_vnni, "avx512vnni", "vpdpbusd %%zmm31,%%zmm30,%%zmm\\r")

// AMX: six tiles of sums, so that none waits for its last product (52 cycles; one starts every 16),
// one of rows, one of weights, all of 16 rows of 64 bytes. A thread has them for one call.
struct alignas(64) TileShapes {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(TileShapes) == 64);
constexpr TileShapes kTileShapes;

constexpr int64_t kTiles = 6, kTileRounds = kPeakRounds / 16;

// Rows of operands lie 0 bytes apart: all of a tile are one.
#define INLAY_PEAK_LOOP_TILES(name, isa, step)                       \
  __attribute__((target(isa))) void name() {                         \
    alignas(64) uint32_t a_row[16], b_row[16];                       \
    for (int i = 0; i < 16; ++i) {                                   \
      a_row[i] = kOperands[0];                                       \
      b_row[i] = kOperands[1];                                       \
    }                                                                \
    int64_t rounds = kTileRounds;                                    \
    __asm__ volatile(                                                \
        "ldtilecfg (%1)\n"                                           \
        "tileloadd (%2,%4,1),%%tmm6\n"                               \
        "tileloadd (%3,%4,1),%%tmm7\n"                               \
        ".irp r,0,1,2,3,4,5\ntilezero %%tmm\\r\n.endr\n"             \
        "1:\n"                                                       \
        ".irp r,0,1,2,3,4,5\n" step                                  \
        "\n.endr\n"                                                  \
        "dec %0\n"                                                   \
        "jnz 1b\n"                                                   \
        "tilerelease\n"                                              \
        : "+r"(rounds)                                               \
        : "r"(&kTileShapes), "r"(a_row), "r"(b_row), "r"(int64_t{0}) \
        : "cc", "memory");                                           \
  }

// The operands of tiles_amx.inl.h: rows signed, weights unsigned.
INLAY_PEAK_LOOP_TILES(int8_amx, "amx-tile,amx-int8", "tdpbsud %%tmm7,%%tmm6,%%tmm\\r")
INLAY_PEAK_LOOP_TILES(bf16_amx, "amx-tile,amx-bf16", "tdpbf16ps %%tmm7,%%tmm6,%%tmm\\r")

// One instruction multiplies every value of a vector, each product and its addition count as two.
constexpr PeakLoop narrow(void (*run)(), int64_t value_bytes) {
  return {run, kPeakRounds * kNarrow * (32 / value_bytes) * 2};
}
constexpr PeakLoop wide(void (*run)(), int64_t value_bytes) {
  return {run, kPeakRounds * kWide * (64 / value_bytes) * 2};
}

// 16 rows by 16 columns over 64 bytes of K.
constexpr PeakLoop tiles(void (*run)(), int64_t value_bytes) {
  return {run, kTileRounds * kTiles * 16 * 16 * (64 / value_bytes) * 2};
}

}  // namespace

const PeakLoop kFp32Avx2 = narrow(fp32_avx2, 4);
const PeakLoop kFp32Avx512 = wide(fp32_avx512, 4);
const PeakLoop kBf16Avx512 = wide(bf16_avx512, 2);
const PeakLoop kInt8Avx2 = narrow(int8_avx2, 1);
const PeakLoop kInt8Avx2Vnni = narrow(int8_avx2_vnni, 1);
const PeakLoop kInt8Avx512 = wide(int8_avx512, 1);
const PeakLoop kInt8Avx512Vnni = wide(int8_avx512_vnni, 1);
const PeakLoop kBf16Amx = tiles(bf16_amx, 2);
const PeakLoop kInt8Amx = tiles(int8_amx, 1);
#endif

}  // namespace inlay::kernels
