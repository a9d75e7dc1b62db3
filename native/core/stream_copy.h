// Copies between large memories, past the caches where that is faster.
#pragma once

#include <cstddef>
#include <cstdint>

namespace inlay {

// From so many bytes on, in all ranges of one submission together, a copy past the caches is faster
// even for somebody who reads the result at once; below, one through them is.
constexpr std::size_t kStreamingFrom = std::size_t{128} << 10;

// Copies past the caches. The memories do not overlap. What another thread or process is told after
// the return, it finds the bytes there.
void stream_copy(std::byte* to, const std::byte* from, std::size_t bytes);

inline bool is_streaming(std::size_t bytes_in_all) { return bytes_in_all >= kStreamingFrom; }

// stream_copy() or memcpy().
void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes, bool streaming);

// The variants, which tests compare. A variant that this processor cannot run is null.
using StreamCopy = void (*)(std::byte*, const std::byte*, std::size_t);
StreamCopy stream_copy_baseline();
StreamCopy stream_copy_avx2();
StreamCopy stream_copy_avx2_lanes();  // in several places in turn

// Whether copies past the caches are faster so on this processor: Sapphire Rapids copies 1.25 times
// as fast, EPYC at 0.6 of what it does in one place.
bool copies_in_lanes();

}  // namespace inlay
