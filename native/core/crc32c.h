// CRC32C (Castagnoli), the checksum of iSCSI and ext4.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace inlay {

// Of `bytes`, going on from the CRC of what came before them. About 20 GB/s from the caches where
// the processor has an instruction for it, else 1 GB/s.
uint32_t crc32c(std::span<const std::byte> bytes, uint32_t before = 0);

// The variants, which tests compare. The one by instruction is null where there is none.
using Crc32c = uint32_t (*)(std::span<const std::byte>, uint32_t);
Crc32c crc32c_by_table();
Crc32c crc32c_by_instruction();

}  // namespace inlay
