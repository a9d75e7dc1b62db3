// What the log of a node looks like on its disk.
//
// Extents of equal size. Each begins with a block that holds its head: the log's uuid and a
// sequence, which is another one each time the extent is used again, so that what an earlier use
// left there is never taken for a record. The log's owner and epoch are in it, too. The head stands
// there twice.
//
// Behind it lie runs of records, each run followed by the entries of its records, written when the
// records' bytes are on their way no more. An entry holds a record's key, generation, place and
// CRC, or says that a key was removed, and ends with its commit word; it is right only in the
// place, extent and sequence that it names. So one that is whole was written behind its record, and
// a record whose bytes differ from their CRC was damaged later.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "grain.h"

namespace inlay::store {

constexpr uint64_t kLogBlock = 4096;

// Whose records a log holds, NUL-padded.
constexpr std::size_t kLogOwnerBytes = 128;

using LogUuid = std::array<std::byte, 16>;

struct LogHead {
  static constexpr uint32_t kMagic = 0x484c4b49;
  static constexpr uint32_t kVersion = 1;

  uint32_t magic = kMagic;
  uint32_t version = kVersion;
  LogUuid uuid{};
  uint64_t extent_bytes = 0;
  uint32_t sequence = 0;
  uint32_t in_use = 0;  // whether the extent has entries of this sequence
  uint32_t epoch = 0;   // the log's, when this was written
  std::array<char, kLogOwnerBytes> owner{};
  uint32_t reserved = 0;
  uint32_t crc = 0;
};
static_assert(sizeof(LogHead) == 184);

// Fills the block.
void write_head(std::span<std::byte, kLogBlock> block, LogHead head);
// The newest of those in the block that are whole.
std::optional<LogHead> read_head(std::span<const std::byte, kLogBlock> block);

struct LogEntry {
  static constexpr uint32_t kMagic = 0x454c4b49;
  enum Kind : uint16_t { kRecord = 1, kRemoval = 2 };

  uint32_t magic = kMagic;
  uint16_t kind = kRecord;
  uint16_t key_bytes = 0;  // the key follows, padded to a grain
  LogUuid uuid{};
  uint32_t sequence = 0;
  uint32_t place = 0;  // of the entry: grains from the start of its extent
  uint64_t generation = 0;
  uint32_t record_place = 0;  // grains, too
  uint32_t record_bytes = 0;
  uint32_t record_crc = 0;
  uint32_t crc = 0;  // of all this, and of the key
  uint64_t commit = 0;
};
static_assert(sizeof(LogEntry) == kGrain);

constexpr uint64_t entry_bytes(std::size_t key_bytes) {
  return sizeof(LogEntry) + grain_ceil(key_bytes);
}

// Writes an entry and its key; sets what can be computed.
void write_entry(std::byte* at, LogEntry entry, std::string_view key);

struct FoundEntry {
  LogEntry entry;
  std::string_view key;
};
// The entry that lies at `place` grains in an extent of that log and sequence, if there is one.
std::optional<FoundEntry> read_entry(std::span<const std::byte> extent, uint32_t place,
                                     const LogHead& head);

// Visits the entries of an extent, whole ones only, in the order of their places.
template <typename Visit>
void scan_extent(std::span<const std::byte> extent, const LogHead& head, Visit&& visit) {
  const auto end = static_cast<uint32_t>(extent.size() / kGrain);
  for (uint32_t place = kLogBlock / kGrain; place < end;) {
    const auto found = read_entry(extent, place, head);
    if (found) visit(*found);
    place += found ? static_cast<uint32_t>(entry_bytes(found->key.size()) / kGrain) : 1;
  }
}

}  // namespace inlay::store
