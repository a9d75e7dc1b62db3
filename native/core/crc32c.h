// CRC32C (Castagnoli), the checksum of iSCSI and ext4.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace inlay {

// Of `bytes`, going on from the CRC of what came before them. About 1 ns per byte: for headers.
uint32_t crc32c(std::span<const std::byte> bytes, uint32_t before = 0);

}  // namespace inlay
