// How copies past the caches go on in several places in turn, for processors that gain by it. They
// read ahead of each place, but not past the end of its page: one alone waits for memory there.
#pragma once

#include <cstddef>

namespace inlay::isa {

constexpr std::size_t kStreamLanes = 4;
constexpr std::size_t kStreamLaneBytes = std::size_t{16} << 10;  // one lane behind the other
constexpr std::size_t kStreamRunBytes = 256;  // of one lane before the next one's

}  // namespace inlay::isa
