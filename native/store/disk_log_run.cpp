#include "disk_log_run.h"

#include <cstring>

#include "../core/crc32c.h"
#include "../net/file_queue.h"

namespace inlay::store {

namespace {

constexpr uint64_t kStagingBytes = uint64_t{4} << 20;
constexpr uint64_t kEntriesBytes = uint64_t{256} << 10;

}  // namespace

LogRun::LogRun() : memory_(net::map_file_memory(kStagingBytes + kEntriesBytes)) {}

void LogRun::begin(uint64_t offset, uint64_t end) {
  cursor_ = offset;
  end_ = end;
  staged_ = 0;
  entry_bytes_ = 0;
  gathering_ = false;
  placed_.clear();
  records_.clear();
}

bool LogRun::add(const LogItem& item) {
  const uint64_t bytes = item.record.size();
  const bool small = bytes < kLarge;
  const uint64_t entries = block_ceil(entry_bytes_ + entry_bytes(item.key.size()));
  // Not more than what each way needs.
  const uint64_t staged = block_ceil(staged_) + (small ? block_ceil(bytes) : 2 * kLogBlock);
  if (entries > kEntriesBytes || staged > kStagingBytes) return false;
  const uint64_t start = small && gathering_ ? cursor_ : block_ceil(cursor_);
  if (block_ceil(start + bytes) + entries > end_) return false;
  entry_bytes_ += entry_bytes(item.key.size());
  Placed& placed = placed_.emplace_back(Placed{&item, 0, static_cast<uint32_t>(bytes), 0});
  if (item.is_removal()) return true;
  placed.place = static_cast<uint32_t>(start / kGrain);
  cursor_ = start;
  if (small)
    add_small(placed);
  else
    add_large(placed);
  return true;
}

std::byte* LogRun::stage(std::span<const std::byte> bytes) {
  std::byte* const at = memory_.get() + staged_;
  std::memcpy(at, bytes.data(), bytes.size());
  staged_ += bytes.size();
  // The disk gets whole blocks.
  std::memset(memory_.get() + staged_, 0, block_ceil(staged_) - staged_);
  return at;
}

void LogRun::add_small(Placed& placed) {
  const std::span<const std::byte> record = placed.item->record;
  if (!gathering_) {
    staged_ = block_ceil(staged_);
    records_.push_back({cursor_, memory_.get() + staged_, 0});
    gathering_ = true;
  }
  placed.crc = crc32c({stage(record), record.size()});
  staged_ = grain_ceil(staged_);
  cursor_ = grain_ceil(cursor_ + record.size());
  LogFile::Run& run = records_.back();
  run.bytes = block_ceil(cursor_) - run.offset;
}

void LogRun::add_large(Placed& placed) {
  const std::span<const std::byte> record = placed.item->record;
  gathering_ = false;
  staged_ = block_ceil(staged_);
  const std::size_t middle = (record.size() - kLogBlock) / kLogBlock * kLogBlock;
  const std::size_t rest = record.size() - kLogBlock - middle;
  std::byte* const first = stage(record.first(kLogBlock));
  const std::span<const std::byte> direct = record.subspan(kLogBlock, middle);
  placed.crc = crc32c(direct, crc32c({first, kLogBlock}));
  records_.push_back({cursor_, first, kLogBlock});
  // Moves into the file only read it.
  records_.push_back({cursor_ + kLogBlock, const_cast<std::byte*>(direct.data()), middle});
  if (rest > 0) {
    std::byte* const last = stage(record.last(rest));
    staged_ = block_ceil(staged_);
    placed.crc = crc32c({last, rest}, placed.crc);
    records_.push_back({cursor_ + kLogBlock + middle, last, kLogBlock});
  }
  cursor_ = block_ceil(cursor_ + record.size());
}

void LogRun::finish(const LogHead& head) {
  std::byte* const first = memory_.get() + kStagingBytes;
  entries_ = {block_ceil(cursor_), first, block_ceil(entry_bytes_)};
  std::memset(first + entry_bytes_, 0, entries_.bytes - entry_bytes_);
  uint64_t at = 0;
  for (Placed& placed : placed_) {
    const LogItem& item = *placed.item;
    LogEntry entry;
    entry.kind = item.is_removal() ? LogEntry::kRemoval : LogEntry::kRecord;
    entry.uuid = head.uuid;
    entry.sequence = head.sequence;
    entry.place = static_cast<uint32_t>((entries_.offset + at) / kGrain);
    entry.generation = item.generation;
    entry.record_place = placed.place;
    entry.record_bytes = placed.bytes;
    entry.record_crc = placed.crc;
    if (item.is_removal()) placed.place = entry.place;
    write_entry(first + at, entry, item.key);
    at += entry_bytes(item.key.size());
  }
}

}  // namespace inlay::store
