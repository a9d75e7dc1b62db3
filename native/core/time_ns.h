// Times as numbers, for what keeps no clock of its own.
#pragma once

#include <cstdint>

namespace inlay {

using TimeNs = int64_t;  // of one clock of the caller's, e.g. nanoseconds of the steady clock
inline constexpr TimeNs kMillisecond = 1'000'000;

}  // namespace inlay
