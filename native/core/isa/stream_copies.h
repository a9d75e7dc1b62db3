// One stream_copy per instruction set; each is a file of its own with its own compiler flags.
#pragma once

#include <cstddef>

namespace inlay::isa {

void stream_copy_baseline(std::byte* to, const std::byte* from, std::size_t bytes);
void stream_copy_avx2(std::byte* to, const std::byte* from, std::size_t bytes);
// In several places in turn.
void stream_copy_avx2_lanes(std::byte* to, const std::byte* from, std::size_t bytes);

}  // namespace inlay::isa
