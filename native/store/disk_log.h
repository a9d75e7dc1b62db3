// The disk of a node: a log of records in one file, which a restarted node finds again.
//
// Records are appended to extents, many at a time. Of each key the newest generation counts. A
// removal is a record, too, and is kept as long as the disk has an older record of its key. When
// extents run short, those with the least living bytes are emptied: compact(). The log knows
// records as bytes with a key and a generation; what is in them is their writer's to check.
//
// States of a key, of the records and removals of it that are whole:
//   none -> append -> living(generation) -> append of a greater one -> living(greater)
//   living(g) -> remove(g or greater) -> removed(that one) -> append of a greater one -> living
//   removed -> the last older record is compacted away -> none
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "../transfer/disk_file.h"
#include "disk_log_file.h"
#include "disk_log_format.h"
#include "disk_log_index.h"
#include "disk_log_run.h"

namespace inlay::store {

struct DiskLogOptions {
  std::string path;
  uint64_t bytes = 0;                          // the most that the file takes
  uint64_t extent_bytes = uint64_t{64} << 20;  // of a new log; whole blocks, 64 KiB to 1 GiB
  std::string owner{};                         // whose records they are
};

// How the file is opened, e.g. by Engine::add_file: made where it is missing, locked, and with no
// blocks of the disk taken in advance.
transfer::FileOptions file_of(const DiskLogOptions& options);

// Calls may come from several threads. Those that change the log come one after the other; reads
// wait for none of them. No call has a time limit besides the disk's.
class DiskLog {
 public:
  // Extents that only removals and compaction may begin, and how many a log has at least.
  static constexpr uint32_t kSpareExtents = 2;
  static constexpr uint32_t kMinExtents = 4;

  // Reads all that an earlier log left in the file, which is open as `file`, dropping what is torn
  // or damaged. `file` outlives the log. Throws ArgumentError for a file that holds something else,
  // another owner's records, or more than `bytes`; StoreFailure(kFull), TransferFailure(kFile).
  // Cost: reads the extents that are in use once; memory of one extent meanwhile.
  DiskLog(transfer::FarMemory& file, const DiskLogOptions& options);
  DiskLog(const DiskLog&) = delete;
  DiskLog& operator=(const DiskLog&) = delete;

  const LogUuid& uuid() const { return uuid_; }
  // A number of the log's writer that outlives it: the greatest that was followed.
  uint32_t epoch() const { return epoch_; }
  LogStatus follow(uint32_t epoch);
  // Of what was found when it was opened.
  uint64_t newest_generation() const { return newest_generation_; }
  // An extent's head was damaged when the log was opened: what was in it, removals among it, is
  // lost, and what is older than that may be found again.
  bool lost_extents() const { return lost_extents_; }

  // Of the first `count` items, those that are newer than what the log has of their keys are in it
  // now; kOk: of all. They are safe from a crash of this process; from one of the machine after
  // sync(). Throws ArgumentError, before anything is written, for an empty record, a key of no or
  // too many bytes, and a record over max_record_bytes().
  // Cost: two writes for up to 4 MiB of records under 256 KiB and any number of larger ones; of the
  // disk, their bytes and what rounds those and their entries up to blocks, 8 KiB for a small one
  // that comes alone.
  struct Appended {
    LogStatus status;
    std::size_t count;
  };
  Appended append(std::span<const LogItem> items);

  // Afterwards no record of these keys up to these generations is read again, nor found after a
  // restart, that of the machine after sync(). Keys that the log does not have cost nothing.
  struct Removal {
    std::string_view key;
    uint64_t generation;
  };
  LogStatus remove(std::span<const Removal> removals);

  // All calls that returned before are on the disk.
  LogStatus sync() { return file_.sync(); }

  struct Found {
    uint64_t generation;
    uint64_t bytes;
  };
  std::optional<Found> find(std::string_view key);

  // Bytes [offset, offset + into.size()) of the record of that key and generation. Checked against
  // the log's own CRC where that is all of it. Throws ArgumentError where the record has fewer.
  struct Read {
    std::string_view key;
    uint64_t generation;
    uint64_t offset = 0;
    std::span<std::byte> into;
    LogStatus status = LogStatus::kOk;
  };
  void read(std::span<Read> reads);

  // Empties the extent with the least living bytes, copying those. freed_bytes is what that gains;
  // 0: there is no extent that would gain an eighth of its room.
  // Cost: reads one extent and iterates over the index.
  struct Gone {
    std::string key;
    uint64_t generation;
  };
  struct Emptied {
    LogStatus status;
    uint64_t freed_bytes;
    std::vector<Gone> gone;  // records that are in the log no more: damaged ones, or given up
  };
  Emptied compact();
  // Empties the extent that was begun first, and lets go of the records in it but for those that
  // `keeps` wants, by their bytes. freed_bytes 0: there is none besides that being written to.
  using Keeps = std::function<bool(std::span<const std::byte>)>;
  Emptied give_up(const Keeps& keeps);

  // Visits all living records with their first bytes, `head_bytes` or as many as there are. No
  // record is added or removed meanwhile. Cost: one read of the disk for each.
  struct Living {
    std::string_view key;
    uint64_t generation;
    uint64_t bytes;
    std::span<const std::byte> head;
  };
  LogStatus for_each(std::size_t head_bytes, const std::function<void(const Living&)>& visit);

  struct Figures {
    uint64_t records;
    uint64_t removals;  // that are still needed
    uint64_t living_bytes;
    uint32_t extents;
    uint32_t free_extents;
    uint64_t damaged;  // records that were found damaged since the log was opened
    uint64_t memory_bytes;
  };
  Figures figures();  // cost: iterates over the index

  struct Room {
    uint32_t extents;
    uint32_t free_extents;
    uint64_t living_bytes;  // with what belongs to them
  };
  Room room();
  uint64_t extent_bytes() const { return extent_bytes_; }
  uint64_t max_record_bytes() const;

 private:
  static constexpr uint32_t kNone = ~uint32_t{0};

  struct Extent {
    uint32_t sequence = 0;
    bool in_use = false;
    uint32_t readers = 0;
    uint64_t living = 0;  // bytes
  };

  // The newest that is known of a key.
  struct Known {
    uint64_t generation;
    bool removed;
    uint32_t extent;
    uint32_t place;
    uint32_t bytes;
    uint32_t crc;
  };

  uint64_t offset_of(uint32_t extent, uint64_t place = 0) const {
    return extent * extent_bytes_ + place * kGrain;
  }
  LogHead head_of(uint32_t extent) const;
  void open();
  uint64_t adopt_extent(uint32_t extent, std::span<const std::byte> bytes);

  void learn(std::string_view key, const Known& known);
  bool is_newer(const Known& known, const LogRecord& there) const;
  void set(LogRecord& record, const Known& known);
  void forget(LogRecord& record);
  void drop_needless_removals();

  LogStatus write_head_of(uint32_t extent, uint32_t sequence, bool in_use);
  void set_owner(const std::string& owner);
  LogStatus begin_extent(uint32_t spare);
  // Writes items from `done` on, at least one; `move`: records that the log has already.
  LogStatus write_run(std::span<const LogItem> items, std::size_t& done, uint32_t spare, bool move);
  LogStatus write_all(std::span<const LogItem> items, std::size_t& done, uint32_t spare, bool move);
  void check(std::span<const LogItem> items) const;

  std::optional<uint32_t> choose_victim();
  std::vector<LogRecord*> dead_in(uint32_t extent, std::span<const std::byte> bytes);
  struct Kept {
    std::vector<LogItem> items;
    std::vector<bool> lived;          // by item: whether the extent has a whole record of it
    std::vector<LogRecord*> dropped;  // needed no more
    std::vector<Gone> gone;
  };
  Kept living_in(uint32_t extent, std::span<const std::byte> bytes, const Keeps& keeps);
  Emptied empty(uint32_t victim, const Keeps& keeps);

  LogFile file_;
  const std::string path_;
  uint64_t extent_bytes_;
  LogUuid uuid_{};
  std::mutex writing_;  // before index_mutex_
  LogRun run_;
  std::shared_ptr<std::byte> head_block_;
  uint32_t open_ = kNone;  // the extent that is written to
  uint64_t fill_ = 0;      // so far
  uint32_t last_sequence_ = 0;
  uint32_t epoch_ = 0;
  uint64_t newest_generation_ = 0;
  std::array<char, kLogOwnerBytes> owner_{};
  bool lost_extents_ = false;
  bool failed_ = false;

  // Changed with both held, read with either.
  std::mutex index_mutex_;
  LogIndex index_;
  std::vector<Extent> extents_;
  std::atomic<uint64_t> damaged_{0};
};

}  // namespace inlay::store
