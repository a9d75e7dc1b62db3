// BLAKE2b with a row of four words in a vector; a file of its own with its own compiler flags.
#pragma once

#include <cstdint>

namespace inlay::isa {

// See Blake2bCompress. Needs AVX2.
void blake2b_compress_avx2(uint64_t* state, const uint8_t* block, uint64_t counted, bool last);

}  // namespace inlay::isa
