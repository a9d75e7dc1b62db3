// CRC32C (Castagnoli), the checksum of iSCSI and ext4: of bytes, of bytes that are copied at the
// same time, and of parts that were summed apart.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace inlay {

// Of `bytes`, going on from the CRC of what came before them. About 25 GB/s from the caches and 19
// GB/s from memory where the processor has an instruction for it, else 1 GB/s.
uint32_t crc32c(std::span<const std::byte> bytes, uint32_t before = 0);

// Copies and sums up in one pass, at about the speed of copy_bytes() past the caches, 20 GB/s
// within them. The CRC is of what `to` was given, whoever changes `from` meanwhile. `streaming` and
// what it means for other threads: as of copy_bytes().
uint32_t copy_crc32c(std::byte* to, const std::byte* from, std::size_t bytes, bool streaming,
                     uint32_t before = 0);

// Of a message whose first part has CRC `first` and whose second, of `second_bytes`, has `second`.
// About 5 ns for each set bit of second_bytes, 0.1 us without the instruction.
// Combinations may be made in any order: with second == 0 a part goes past the bytes that follow
// it, and the CRC of the whole is the exclusive or of all such parts.
uint32_t crc32c_combine(uint32_t first, uint32_t second, uint64_t second_bytes);

// The variants, which tests compare. Null: this processor has no instruction for it. By vectors:
// copies past the caches, by lanes in several places in turn; else as by instruction.
struct Crc32c {
  uint32_t (*sum)(std::span<const std::byte>, uint32_t before);
  uint32_t (*copy)(std::byte* to, const std::byte* from, std::size_t bytes, bool streaming,
                   uint32_t before);
  uint32_t (*combine)(uint32_t first, uint32_t second, uint64_t second_bytes);
};
const Crc32c* crc32c_by_table();
const Crc32c* crc32c_by_instruction();
const Crc32c* crc32c_by_vectors();
const Crc32c* crc32c_by_lanes();

}  // namespace inlay
