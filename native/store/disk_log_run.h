// Records and removals that go to a disk log together: where each of them comes to lie, what is
// written from where, and the entries that follow.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "disk_log_file.h"
#include "disk_log_format.h"

namespace inlay::store {

struct LogItem {
  std::string_view key;
  uint64_t generation = 0;
  // Its first 4096 bytes may change meanwhile: they are copied once. Empty: the key is removed.
  std::span<const std::byte> record;

  bool is_removal() const { return record.empty(); }
};

class LogRun {
 public:
  // Records of so many bytes are written from where they are, and begin at a block. Smaller ones
  // are gathered.
  static constexpr uint64_t kLarge = uint64_t{256} << 10;

  // Room for one such record is left in an empty extent of that size.
  static constexpr uint64_t room_for(uint64_t record_bytes, std::size_t key_bytes) {
    return kLogBlock + block_ceil(record_bytes) + block_ceil(entry_bytes(key_bytes));
  }
  static constexpr uint64_t block_ceil(uint64_t bytes) {
    return (bytes + kLogBlock - 1) & ~(kLogBlock - 1);
  }

  LogRun();

  struct Placed {
    const LogItem* item;
    uint32_t place;  // of the record, or the removal's entry: grains from the extent's start
    uint32_t bytes;
    uint32_t crc;
  };

  // Begins at the block `offset` of an extent, to end at `end`.
  void begin(uint64_t offset, uint64_t end);
  // False: it does not fit any more. The item stays until the run is written.
  bool add(const LogItem& item);
  // Writes the entries; then the items have their places.
  void finish(const LogHead& head);

  bool empty() const { return placed_.empty(); }
  std::span<const Placed> placed() const { return placed_; }
  // Relative to the extent. Records first, then the entries.
  std::span<const LogFile::Run> records() const { return records_; }
  LogFile::Run entries() const { return entries_; }
  uint64_t end() const { return entries_.offset + entries_.bytes; }

 private:
  std::byte* stage(std::span<const std::byte> bytes);
  void add_small(Placed& placed);
  void add_large(Placed& placed);

  const std::shared_ptr<std::byte> memory_;  // staging, then the entries
  uint64_t cursor_ = 0;
  uint64_t end_ = 0;
  uint64_t staged_ = 0;
  uint64_t entry_bytes_ = 0;
  bool gathering_ = false;  // the last run of bytes takes more small records
  std::vector<Placed> placed_;
  std::vector<LogFile::Run> records_;
  LogFile::Run entries_{};
};

}  // namespace inlay::store
