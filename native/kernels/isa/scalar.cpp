// Portable C++ for every processor. Everything else is in an anonymous namespace, so that the
// linker cannot pick this file's copy of a function for another ISA.
#include "../grids.h"
#include "../small_floats.h"
#include "parts.h"

namespace inlay::kernels::scalar {
namespace {

// clang-format off: each needs the one before
#include "vec_scalar.inl.h"
#include "dot_scalar.inl.h"
#include "codes_scalar.inl.h"
#include "../decode.inl.h"
#include "points_scalar.inl.h"
#include "../blocks.inl.h"
#include "bf16_fma.inl.h"
#include "../product_steps.inl.h"
#include "../product_tiles.inl.h"
#include "../product.inl.h"
#include "vectors.inl.h"
// clang-format on

}  // namespace

const VectorKernels kVectors = vector_kernels();
const IntegerProducts kIntegers = {Dot::kName, Dot::kBias8, integer_product};
const Bf16Products kBf16 = {Bf16::kName, bf16_product<OpBf16>};

}  // namespace inlay::kernels::scalar
