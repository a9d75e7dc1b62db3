// A stored object in a segment: a header, the key, the payload, the parent's key, padding.
//
// Records lie one behind the other, each with its length, so that a segment can be read from its
// start to its end without any index. What is no object is a filler, which has a length, too.
//
//   offset 0   magic u32, state u32, bytes u64, generation u64, payload bytes u64
//         32   payload CRC32C u32, key bytes u16, flags u16, payload offset u32, replicas u16
//         46   parent bytes u16, group u64, recompute us u32
//         60   CRC32C of the header without its state, and of the key, u32
//         64   key, padded to a grain
//         ..   payload; where there is a parent, CRC32C of its key, u32, and this key; padded
//
// The state alone changes once a record is written: kLive to kDead.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "grain.h"
#include "object.h"

namespace inlay::store {

// Payloads of so many bytes begin at a page, as their records do.
inline constexpr uint64_t kLargePayload = uint64_t{256} << 10;
inline constexpr uint64_t kLargeAlignment = 4096;

enum class RecordState : uint32_t { kFiller = 0x4c494646, kLive = 0x4556494c, kDead = 0x44414544 };

struct RecordHeader {
  static constexpr uint32_t kMagic = 0x31524b49;

  uint32_t magic;
  uint32_t state;
  uint64_t bytes;
  uint64_t generation;
  uint64_t payload_bytes;
  uint32_t payload_crc;
  uint16_t key_bytes;
  uint16_t flags;  // ObjectFlag
  uint32_t payload_offset;
  uint16_t replicas;      // that were wanted
  uint16_t parent_bytes;  // 0: none
  uint64_t group;
  uint32_t recompute_us;
  uint32_t crc;

  bool operator==(const RecordHeader&) const = default;
};
static_assert(sizeof(RecordHeader) == kGrain);

struct RecordShape {
  uint64_t bytes;           // of the whole record
  uint64_t payload_offset;  // from its start
  uint64_t alignment;       // of its start in the segment
};
RecordShape shape_of(std::size_t key_bytes, uint64_t payload_bytes, std::size_t parent_bytes = 0);
// Where the next record of that shape begins, from `offset` on.
inline uint64_t aligned(uint64_t offset, uint64_t alignment) {
  return (offset + alignment - 1) / alignment * alignment;
}

// Of a living record whose key follows.
struct RecordFields {
  uint64_t generation = 0;
  uint64_t payload_bytes = 0;
  uint32_t payload_crc = 0;
  uint16_t flags = 0;
  uint16_t replicas = 1;
  uint16_t parent_bytes = 0;
  uint64_t group = 0;
  uint32_t recompute_us = 0;
};
RecordHeader make_record(std::string_view key, const RecordFields& fields);
RecordHeader make_filler(uint64_t bytes);
// What follows the payload.
constexpr std::size_t tail_bytes(std::size_t parent_bytes) {
  return parent_bytes == 0 ? 0 : sizeof(uint32_t) + parent_bytes;
}
void write_tail(std::byte* to, std::string_view parent);
// The parent's key in a whole record; empty: none, or damaged.
std::string_view parent_in(const RecordHeader& header, std::span<const std::byte> record);

// The key that stands behind its header at the beginning of `bytes`, which may end with it. None
// where the header is damaged, or says more bytes than `room`. Reads the state not at all.
struct ParsedRecord {
  RecordHeader header;
  std::string_view key;
};
std::optional<ParsedRecord> parse_record(std::span<const std::byte> bytes, uint64_t room);

// The state of the record that begins at `record`, which other processes may change meanwhile.
inline std::atomic_ref<uint32_t> state_at(std::byte* record) {
  return std::atomic_ref(reinterpret_cast<RecordHeader*>(record)->state);
}
inline RecordState load_state(const std::byte* record) {
  return static_cast<RecordState>(state_at(const_cast<std::byte*>(record)).load());
}

// Visits (offset, record) of the chain in [from, to) of a segment's memory, fillers and dead
// records too. Returns where the chain ends: `to`, or the first header that is not right.
template <typename Visit>
uint64_t walk_records(std::span<const std::byte> memory, uint64_t from, uint64_t to,
                      Visit&& visit) {
  while (from < to) {
    const auto record = parse_record(memory.subspan(from, to - from), to - from);
    if (!record || !visit(from, *record)) break;
    from += record->header.bytes;
  }
  return from;
}

}  // namespace inlay::store
