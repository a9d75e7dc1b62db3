// The table file of a segment, as its owner writes it and clients of the same host read it.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <span>

#include "../core/crc32c.h"
#include "messages.h"

namespace inlay::store {

struct SegmentTable {
  static constexpr uint64_t kMagic = 0x33474553594c4e49;
  static constexpr std::size_t kMaxNameBytes = 128;
  static constexpr std::size_t kMaxOpen = 4096;
  using Name = std::array<char, kMaxNameBytes>;  // NUL-padded

  struct Fixed {
    uint64_t magic;
    uint64_t bytes;
    uint64_t keeps;  // 1: for the next process of the node; 0: it goes with this one
    Uuid uuid;
    Name node;
    Name tenant;
  };
  // Of an open extent.
  struct Entry {
    std::atomic<uint64_t> bytes;  // 0: none; written last but the grant, and removed first
    std::atomic<uint64_t> grant;  // 0: it is being closed
    std::atomic<uint64_t> offset;
    std::atomic<uint64_t> first_generation;
  };

  Fixed fixed;
  uint32_t fixed_crc;
  std::atomic<uint32_t> epoch;
  std::atomic<uint32_t> num_used;  // entries behind so many were never used
  std::array<Entry, kMaxOpen> open;

  // Whether bytes of the segment lie in an open extent of that grant, looked at without a lock.
  bool is_granted(uint64_t offset, uint64_t bytes, uint64_t grant) const {
    if (grant == 0) return false;
    const std::size_t used = std::min<std::size_t>(num_used.load(), kMaxOpen);
    for (const Entry& entry : std::span(open).first(used)) {
      if (entry.grant.load() != grant) continue;
      const uint64_t begin = entry.offset.load();
      const uint64_t size = entry.bytes.load();
      // Grants are used once: the entry was that extent's all the while.
      return entry.grant.load() == grant && offset >= begin && bytes <= size &&
             offset - begin <= size - bytes;
    }
    return false;
  }

  uint32_t crc() const { return crc32c(std::as_bytes(std::span(&fixed, 1))); }
};

// Who writes into an open extent in place pins it first: its offset plus this, which is no
// record's.
inline constexpr uint64_t kWriting = 32;

}  // namespace inlay::store
