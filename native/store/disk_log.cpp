#include "disk_log.h"

#include <algorithm>
#include <string>
#include <utility>

#include "../core/crc32c.h"
#include "../core/errors.h"
#include "object.h"

namespace inlay::store {

namespace {

// What a key's newest record or removal takes of its extent.
uint64_t bytes_of(const LogRecord& record) {
  return grain_ceil(record.bytes) + entry_bytes(record.key_bytes);
}

}  // namespace

void DiskLog::check(std::span<const LogItem> items) const {
  for (const LogItem& item : items) {
    if (item.key.empty() || item.key.size() > kMaxKeyBytes)
      throw ArgumentError("disk log: a key has 1 to " + std::to_string(kMaxKeyBytes) +
                          " bytes, got " + std::to_string(item.key.size()));
    if (item.is_removal() || item.record.size() > max_record_bytes())
      throw ArgumentError("disk log '" + path_ + "': a record has 1 to " +
                          std::to_string(max_record_bytes()) + " bytes, got " +
                          std::to_string(item.record.size()) + ": use larger extents");
  }
}

uint64_t DiskLog::max_record_bytes() const {
  return extent_bytes_ - LogRun::room_for(0, kMaxKeyBytes);
}

DiskLog::Appended DiskLog::append(std::span<const LogItem> items) {
  check(items);
  const std::lock_guard writing(writing_);
  Appended appended{LogStatus::kOk, 0};
  appended.status = write_all(items, appended.count, kSpareExtents, false);
  return appended;
}

LogStatus DiskLog::remove(std::span<const Removal> removals) {
  const std::lock_guard writing(writing_);
  std::vector<LogItem> items;
  for (const Removal& removal : removals) {
    const LogRecord* const found = index_.find(removal.key);
    if (found == nullptr || found->removed || found->generation > removal.generation) continue;
    items.push_back({removal.key, removal.generation, {}});
  }
  std::size_t done = 0;
  return write_all(items, done, kSpareExtents - 1, false);
}

LogStatus DiskLog::write_all(std::span<const LogItem> items, std::size_t& done, uint32_t spare,
                             bool move) {
  while (done < items.size()) {
    const LogStatus status = write_run(items, done, spare, move);
    if (status != LogStatus::kOk) return status;
  }
  return LogStatus::kOk;
}

LogStatus DiskLog::write_run(std::span<const LogItem> items, std::size_t& done, uint32_t spare,
                             bool move) {
  if (failed_) return LogStatus::kFailed;
  const auto collect = [&] {
    run_.begin(fill_, extent_bytes_);
    std::size_t next = done;
    while (next < items.size() && run_.add(items[next])) ++next;
    return next;
  };
  std::size_t next = open_ == kNone ? done : collect();
  if (next == done) {
    const LogStatus begun = begin_extent(spare);
    if (begun != LogStatus::kOk) return begun;
    next = collect();
  }
  run_.finish(head_of(open_));
  // Nothing is written twice in one place: what a write that fails leaves there is not known.
  fill_ = run_.end();
  std::vector<LogFile::Run> records(run_.records().begin(), run_.records().end());
  for (LogFile::Run& run : records) run.offset += offset_of(open_);
  const LogStatus written = file_.write(records);
  if (written != LogStatus::kOk) return written;
  // An entry whose record is damaged hides older ones of its key. Where there are any, it has to
  // be on the disk after its record.
  const bool hides = std::ranges::any_of(run_.placed(), [&](const LogRun::Placed& placed) {
    return !placed.item->is_removal() && index_.find(placed.item->key) != nullptr;
  });
  if (hides && file_.sync() != LogStatus::kOk) return LogStatus::kFailed;
  LogFile::Run entries = run_.entries();
  entries.offset += offset_of(open_);
  const LogStatus ended = file_.write({&entries, 1});
  if (ended != LogStatus::kOk) {
    failed_ = true;  // some of them may be there
    return ended;
  }
  const std::lock_guard lock(index_mutex_);
  for (const LogRun::Placed& placed : run_.placed()) {
    const Known known{placed.item->generation,
                      placed.item->is_removal(),
                      open_,
                      placed.place,
                      placed.bytes,
                      placed.crc};
    LogRecord* const there = index_.find(placed.item->key);
    if (move && there != nullptr)
      set(*there, known);
    else
      learn(placed.item->key, known);
  }
  done = next;
  return LogStatus::kOk;
}

LogStatus DiskLog::begin_extent(uint32_t spare) {
  std::vector<uint32_t> free;
  {
    const std::lock_guard lock(index_mutex_);
    for (uint32_t i = 0; i < extents_.size() && free.size() <= spare; ++i)
      if (!extents_[i].in_use && extents_[i].readers == 0) free.push_back(i);
  }
  if (free.size() <= spare) return LogStatus::kFull;
  // The spare ones, too, while the disk has room for them.
  for (const uint32_t extent : free) {
    const LogStatus reserved = file_.reserve(offset_of(extent), extent_bytes_);
    if (reserved != LogStatus::kOk) return reserved;
  }
  const uint32_t chosen = free.front();
  const LogStatus begun = write_head_of(chosen, last_sequence_ + 1, true);
  if (begun != LogStatus::kOk) return begun;
  open_ = chosen;
  fill_ = kLogBlock;
  return LogStatus::kOk;
}

// What the extent is from now on; for who reads it after a restart, too.
LogStatus DiskLog::write_head_of(uint32_t extent, uint32_t sequence, bool in_use) {
  last_sequence_ = std::max(last_sequence_, sequence);
  LogHead head;
  head.uuid = uuid_;
  head.extent_bytes = extent_bytes_;
  head.sequence = sequence;
  head.in_use = in_use ? 1 : 0;
  head.epoch = epoch_;
  head.owner = owner_;
  write_head(std::span<std::byte, kLogBlock>(head_block_.get(), kLogBlock), head);
  const LogFile::Run run{offset_of(extent), head_block_.get(), kLogBlock};
  const LogStatus status = file_.write({&run, 1});
  if (status != LogStatus::kOk) return status;
  const std::lock_guard lock(index_mutex_);
  extents_[extent].sequence = sequence;
  extents_[extent].in_use = in_use;
  return status;
}

LogStatus DiskLog::follow(uint32_t epoch) {
  const std::lock_guard writing(writing_);
  if (epoch <= epoch_ && !lost_extents_) return LogStatus::kOk;
  epoch_ = std::max(epoch, epoch_);
  lost_extents_ = false;
  const Extent& first = extents_[0];
  const LogStatus status =
      write_head_of(0, first.in_use ? first.sequence : last_sequence_ + 1, first.in_use);
  return status == LogStatus::kOk ? file_.sync() : status;
}

LogHead DiskLog::head_of(uint32_t extent) const {
  LogHead head;
  head.uuid = uuid_;
  head.extent_bytes = extent_bytes_;
  head.sequence = extents_[extent].sequence;
  return head;
}

// Of one generation a removal counts before a record, and of copies of a record the later one: the
// extent of the other was being emptied.
bool DiskLog::is_newer(const Known& known, const LogRecord& there) const {
  if (known.generation != there.generation) return known.generation > there.generation;
  if (known.removed || there.removed) return known.removed && !there.removed;
  return extents_[known.extent].sequence > extents_[there.extent].sequence;
}

// What stands on the disk: the newest counts.
void DiskLog::learn(std::string_view key, const Known& known) {
  LogRecord* const there = index_.find(key);
  if (there == nullptr) {
    set(index_.insert(key), known);
  } else if (is_newer(known, *there)) {
    if (!there->removed) ++there->older;
    set(*there, known);
  } else if (!known.removed) {
    ++there->older;
  }
}

void DiskLog::set(LogRecord& record, const Known& known) {
  if (record.bytes > 0 || record.removed) extents_[record.extent].living -= bytes_of(record);
  record.generation = known.generation;
  record.removed = known.removed;
  record.extent = known.extent;
  record.place = known.place;
  record.bytes = known.bytes;
  record.crc = known.crc;
  extents_[record.extent].living += bytes_of(record);
}

void DiskLog::forget(LogRecord& record) {
  extents_[record.extent].living -= bytes_of(record);
  index_.erase(record);
}

std::optional<DiskLog::Found> DiskLog::find(std::string_view key) {
  const std::lock_guard lock(index_mutex_);
  const LogRecord* const found = index_.find(key);
  if (found == nullptr || found->removed) return {};
  return Found{found->generation, found->bytes};
}

void DiskLog::read(std::span<Read> reads) {
  struct Job {
    Read* read;
    uint32_t extent;
    uint32_t crc;
    bool whole;
    LogFile::Run run;
  };
  std::vector<Job> jobs;
  std::vector<LogFile::Run> runs;
  {
    const std::lock_guard lock(index_mutex_);
    for (Read& read : reads) {
      const LogRecord* const found = index_.find(read.key);
      read.status = LogStatus::kNotFound;
      if (found == nullptr || found->removed || found->generation != read.generation) continue;
      if (read.offset > found->bytes || read.into.size() > found->bytes - read.offset)
        throw ArgumentError("disk log: bytes " + std::to_string(read.offset) + " to " +
                            std::to_string(read.offset + read.into.size()) + " of a record of " +
                            std::to_string(found->bytes));
      const LogFile::Run run{offset_of(found->extent, found->place) + read.offset, read.into.data(),
                             read.into.size()};
      jobs.push_back({&read, found->extent, found->crc, read.into.size() == found->bytes, run});
      runs.push_back(run);
    }
    for (const Job& job : jobs) ++extents_[job.extent].readers;
  }
  const LogStatus all = file_.read(runs);
  for (const Job& job : jobs) {
    Read& read = *job.read;
    read.status = all == LogStatus::kOk ? all : file_.read({&job.run, 1});
    if (read.status != LogStatus::kOk || !job.whole || crc32c(read.into) == job.crc) continue;
    read.status = LogStatus::kDamaged;
    ++damaged_;
  }
  const std::lock_guard lock(index_mutex_);
  for (const Job& job : jobs) --extents_[job.extent].readers;
}

DiskLog::Room DiskLog::room() {
  const std::lock_guard lock(index_mutex_);
  Room room{static_cast<uint32_t>(extents_.size()), 0, 0};
  for (const Extent& extent : extents_) {
    if (!extent.in_use) ++room.free_extents;
    room.living_bytes += extent.living;
  }
  return room;
}

DiskLog::Figures DiskLog::figures() {
  const std::lock_guard lock(index_mutex_);
  Figures figures{};
  index_.for_each([&](const LogRecord& record) {
    ++(record.removed ? figures.removals : figures.records);
    if (!record.removed) figures.living_bytes += record.bytes;
  });
  figures.extents = static_cast<uint32_t>(extents_.size());
  figures.free_extents = static_cast<uint32_t>(
      std::ranges::count_if(extents_, [](const Extent& extent) { return !extent.in_use; }));
  figures.damaged = damaged_.load();
  figures.memory_bytes = index_.memory_bytes() + extents_.capacity() * sizeof(Extent);
  return figures;
}

}  // namespace inlay::store
