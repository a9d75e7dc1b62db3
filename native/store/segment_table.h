// The table file of a segment, as its owner writes it and clients of the same host read it.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <span>

#include "../core/crc32c.h"
#include "messages.h"

namespace inlay::store {

struct SegmentTable {
  static constexpr uint64_t kMagic = 0x31474553594c4e49;
  static constexpr std::size_t kMaxNameBytes = 128;
  static constexpr std::size_t kMaxOpen = 4096;
  using Name = std::array<char, kMaxNameBytes>;  // NUL-padded

  struct Fixed {
    uint64_t magic;
    uint64_t bytes;
    Uuid uuid;
    Name node;
    Name tenant;
  };
  // Of an open extent.
  struct Entry {
    std::atomic<uint64_t> bytes;  // 0: none; written last, and removed first
    std::atomic<uint64_t> grant;  // 0: it is being closed
    std::atomic<uint64_t> offset;
    std::atomic<uint64_t> first_generation;
  };

  Fixed fixed;
  uint32_t fixed_crc;
  std::atomic<uint32_t> epoch;
  std::array<Entry, kMaxOpen> open;

  uint32_t crc() const { return crc32c(std::as_bytes(std::span(&fixed, 1))); }
};

// Who writes into an open extent in place pins it first: its offset plus this, which is no
// record's.
inline constexpr uint64_t kWriting = 32;

}  // namespace inlay::store
