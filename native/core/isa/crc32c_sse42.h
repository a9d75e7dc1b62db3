// CRC32C by the processor's instruction; a file of its own with its own compiler flags.
#pragma once

#include <cstddef>
#include <cstdint>

namespace inlay::isa {

// All need SSE4.2 and PCLMULQDQ. CRCs are inverted, as between the blocks of one message.
uint32_t crc32c_sse42(const std::byte* bytes, std::size_t size, uint32_t crc);
uint32_t copy_crc32c_sse42(std::byte* to, const std::byte* from, std::size_t size, uint32_t crc);
// Past the caches.
uint32_t stream_crc32c_sse42(std::byte* to, const std::byte* from, std::size_t size, uint32_t crc);

// Of a CRC that is not inverted, times x^(bits - 33), which is `factor`: times x^bits.
uint32_t crc32c_times_sse42(uint32_t crc, uint32_t factor);

}  // namespace inlay::isa
