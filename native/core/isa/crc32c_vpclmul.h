// CRC32C of bytes that are copied past the caches, by carry-less multiplication of whole vectors.
#pragma once

#include <cstddef>
#include <cstdint>

namespace inlay::isa {

// As stream_crc32c_sse42(). Needs AVX2 and VPCLMULQDQ, too.
uint32_t stream_crc32c_vpclmul(std::byte* to, const std::byte* from, std::size_t size,
                               uint32_t crc);
// The same, in several places in turn.
uint32_t stream_crc32c_vpclmul_lanes(std::byte* to, const std::byte* from, std::size_t size,
                                     uint32_t crc);

}  // namespace inlay::isa
