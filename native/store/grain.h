// What records and ranges of a segment are measured in.
#pragma once

#include <cstdint>

namespace inlay::store {

constexpr uint64_t kGrain = 64;  // bytes

constexpr uint64_t grain_floor(uint64_t bytes) { return bytes & ~(kGrain - 1); }
constexpr uint64_t grain_ceil(uint64_t bytes) { return grain_floor(bytes + kGrain - 1); }

}  // namespace inlay::store
