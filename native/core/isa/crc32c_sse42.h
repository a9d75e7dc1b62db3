// CRC32C by the processor's instruction; a file of its own with its own compiler flags.
#pragma once

#include <cstddef>
#include <cstdint>

namespace inlay::isa {

// Needs SSE4.2 and PCLMULQDQ. Of the inverted CRC, as between the blocks of one message.
uint32_t crc32c_sse42(const std::byte* bytes, std::size_t size, uint32_t crc);

}  // namespace inlay::isa
