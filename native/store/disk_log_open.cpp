// How a disk log is found again: what whole entries say, of which records.
#include <sys/random.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <string>

#include "../core/crc32c.h"
#include "../core/errors.h"
#include "../net/file_queue.h"
#include "disk_log.h"
#include "failure.h"

namespace inlay::store {

namespace {

constexpr uint64_t kMinExtentBytes = uint64_t{64} << 10;
constexpr uint64_t kMaxExtentBytes = uint64_t{1} << 30;

uint64_t check_extent_bytes(const DiskLogOptions& options) {
  const uint64_t bytes = options.extent_bytes;
  if (bytes % kLogBlock != 0 || bytes < kMinExtentBytes || bytes > kMaxExtentBytes)
    throw ArgumentError("extent_bytes: whole blocks of " + std::to_string(kLogBlock) + ", from " +
                        std::to_string(kMinExtentBytes) + " to " + std::to_string(kMaxExtentBytes) +
                        ", got " + std::to_string(bytes));
  if (options.bytes / bytes < DiskLog::kMinExtents)
    throw ArgumentError("bytes: a disk log has at least " + std::to_string(DiskLog::kMinExtents) +
                        " extents of " + std::to_string(bytes) + " bytes, got room for " +
                        std::to_string(options.bytes));
  return bytes;
}

std::span<const std::byte, kLogBlock> block_at(const std::byte* at) {
  return std::span<const std::byte, kLogBlock>(at, kLogBlock);
}

bool is_zero(std::span<const std::byte> bytes) {
  return std::ranges::all_of(bytes, [](std::byte byte) { return byte == std::byte{0}; });
}

}  // namespace

transfer::FileOptions file_of(const DiskLogOptions& options) {
  const uint64_t extent_bytes = check_extent_bytes(options);
  return {options.path, options.bytes / extent_bytes * extent_bytes, false};
}

DiskLog::DiskLog(transfer::FarMemory& file, const DiskLogOptions& options)
    : file_(file, options.path),
      path_(options.path),
      extent_bytes_(check_extent_bytes(options)),
      head_block_(net::map_file_memory(kLogBlock)),
      extents_(options.bytes / extent_bytes_) {
  set_owner(options.owner);
  struct stat found{};
  const uint64_t bytes = extents_.size() * extent_bytes_;
  if (stat(path_.c_str(), &found) == 0 && static_cast<uint64_t>(found.st_size) > bytes)
    throw ArgumentError("disk log '" + path_ + "' has " + std::to_string(found.st_size) +
                        " bytes: give it at least so many, or remove the file, instead of " +
                        std::to_string(options.bytes));
  open();
}

void DiskLog::set_owner(const std::string& owner) {
  if (owner.size() >= kLogOwnerBytes)
    throw ArgumentError("owner: must have less than " + std::to_string(kLogOwnerBytes) +
                        " bytes, got " + std::to_string(owner.size()));
  std::ranges::copy(owner, owner_.begin());
}

void DiskLog::open() {
  const auto require = [this](LogStatus status) {
    if (status == LogStatus::kOk) return;
    const std::string text = "disk log '" + path_ + "' ";
    if (status == LogStatus::kFull) throw StoreFailure(StoreStatus::kFull, text + "has no room");
    throw TransferFailure(Status::kFile, text + "cannot be read or written");
  };
  const std::shared_ptr<std::byte> blocks = net::map_file_memory(extents_.size() * kLogBlock);
  std::vector<LogFile::Run> runs;
  for (uint32_t i = 0; i < extents_.size(); ++i)
    runs.push_back({offset_of(i), blocks.get() + i * kLogBlock, kLogBlock});
  require(file_.read(runs));

  bool known = false;
  std::vector<std::optional<LogHead>> heads;
  for (uint32_t i = 0; i < extents_.size(); ++i) {
    const auto head = heads.emplace_back(read_head(block_at(blocks.get() + i * kLogBlock)));
    if (!head) continue;
    if (head->version != LogHead::kVersion || head->extent_bytes != extent_bytes_)
      throw ArgumentError("disk log '" + path_ + "' is of version " +
                          std::to_string(head->version) + " with extents of " +
                          std::to_string(head->extent_bytes) + " bytes, not of version " +
                          std::to_string(LogHead::kVersion) + " and " +
                          std::to_string(extent_bytes_) + ": open it as it is, or remove the file");
    if (head->owner != owner_)
      throw ArgumentError("disk log '" + path_ + "' holds objects of '" +
                          std::string(head->owner.data()) + "', not of '" +
                          std::string(owner_.data()) + "': give each a place of its own");
    if (!known) uuid_ = head->uuid;
    known = true;
    last_sequence_ = std::max(last_sequence_, head->sequence);
    epoch_ = std::max(epoch_, head->epoch);
  }
  if (!known && !is_zero({blocks.get(), extents_.size() * kLogBlock}))
    throw ArgumentError("path: '" + path_ + "' holds something else than a disk log");
  if (!known) {
    if (getrandom(uuid_.data(), uuid_.size(), 0) != static_cast<ssize_t>(uuid_.size()))
      throw ResourceError("the system gives no random bytes");
    require(write_head_of(0, 1, false));
    return;
  }

  const std::shared_ptr<std::byte> memory = net::map_file_memory(extent_bytes_);
  for (uint32_t i = 0; i < extents_.size(); ++i) {
    const bool mine = heads[i] && heads[i]->uuid == uuid_;
    if (!mine && !is_zero(block_at(blocks.get() + i * kLogBlock))) {
      ++damaged_;
      lost_extents_ = true;
    }
    if (!mine) continue;
    extents_[i].sequence = heads[i]->sequence;
    if (heads[i]->in_use == 0) continue;
    extents_[i].in_use = true;
    const LogFile::Run whole{offset_of(i), memory.get(), extent_bytes_};
    require(file_.read({&whole, 1}));
    // The emptiest is written on, so that a log which is opened often does not fill up.
    const uint64_t end = adopt_extent(i, {memory.get(), extent_bytes_});
    if (open_ != kNone && end >= fill_) continue;
    open_ = i;
    fill_ = end;
  }
  drop_needless_removals();
}

// Returns where nothing is written yet.
uint64_t DiskLog::adopt_extent(uint32_t extent, std::span<const std::byte> bytes) {
  uint64_t end = kLogBlock;
  scan_extent(bytes, head_of(extent), [&](const FoundEntry& found) {
    const LogEntry& entry = found.entry;
    end = std::max(end, entry.place * kGrain + entry_bytes(found.key.size()));
    newest_generation_ = std::max(newest_generation_, entry.generation);
    Known known{entry.generation,
                entry.kind == LogEntry::kRemoval,
                extent,
                entry.record_place,
                entry.record_bytes,
                entry.record_crc};
    if (!known.removed &&
        crc32c(bytes.subspan(known.place * kGrain, known.bytes)) != entry.record_crc) {
      // It was the newest, perhaps: what is older must not come back. A copy of itself may.
      ++damaged_;
      if (known.generation-- == 0) return;
      known.removed = true;
    }
    if (known.removed) {
      known.place = entry.place;
      known.bytes = 0;
      known.crc = 0;
    }
    learn(found.key, known);
  });
  return LogRun::block_ceil(end);
}

void DiskLog::drop_needless_removals() {
  std::vector<LogRecord*> needless;
  index_.for_each([&](LogRecord& record) {
    if (record.removed && record.older == 0) needless.push_back(&record);
  });
  for (LogRecord* const record : needless) forget(*record);
}

}  // namespace inlay::store
