// How extents of a disk log are emptied, and all living records visited.
#include <algorithm>

#include "../core/crc32c.h"
#include "../net/file_queue.h"
#include "disk_log.h"

namespace inlay::store {

std::optional<uint32_t> DiskLog::choose_victim() {
  uint32_t victim = kNone;
  for (uint32_t i = 0; i < extents_.size(); ++i) {
    if (!extents_[i].in_use || i == open_) continue;
    if (victim == kNone || extents_[i].living < extents_[victim].living) victim = i;
  }
  if (victim == kNone || extents_[victim].living > extent_bytes_ - extent_bytes_ / 8) return {};
  return victim;
}

// Of the records that go with the extent, those that are dead, by their keys.
std::vector<LogRecord*> DiskLog::dead_in(uint32_t extent, std::span<const std::byte> bytes) {
  std::vector<LogRecord*> dead;
  scan_extent(bytes, head_of(extent), [&](const FoundEntry& found) {
    const LogEntry& entry = found.entry;
    LogRecord* const known = index_.find(found.key);
    if (entry.kind != LogEntry::kRecord || known == nullptr) return;
    if (!known->removed && known->extent == extent && known->place == entry.record_place) return;
    // One that is damaged was not counted.
    const auto record = bytes.subspan(entry.record_place * kGrain, entry.record_bytes);
    if (crc32c(record) == entry.record_crc) dead.push_back(known);
  });
  return dead;
}

DiskLog::Kept DiskLog::living_in(uint32_t extent, std::span<const std::byte> bytes,
                                 const Keeps& keeps) {
  Kept kept;
  index_.for_each([&](LogRecord& record) {
    if (record.extent != extent) return;
    const auto body = bytes.subspan(record.place * kGrain, record.bytes);
    const bool damaged = !record.removed && crc32c(body) != record.crc;
    if (damaged) ++damaged_;
    if (!record.removed && !damaged && (!keeps || keeps(body))) {
      kept.items.push_back({record.key(), record.generation, body});
      kept.lived.push_back(true);
      return;
    }
    if (!record.removed) kept.gone.push_back({std::string(record.key()), record.generation});
    if (record.older > 0) {
      kept.items.push_back({record.key(), record.generation, {}});
      kept.lived.push_back(!record.removed && !damaged);
    } else {
      kept.dropped.push_back(&record);
    }
  });
  return kept;
}

DiskLog::Emptied DiskLog::compact() {
  const std::lock_guard writing(writing_);
  const std::optional<uint32_t> victim = choose_victim();
  if (!victim) return {LogStatus::kOk, 0, {}};
  return empty(*victim, {});
}

DiskLog::Emptied DiskLog::give_up(const Keeps& keeps) {
  const std::lock_guard writing(writing_);
  uint32_t victim = kNone;
  for (uint32_t i = 0; i < extents_.size(); ++i)
    if (extents_[i].in_use && i != open_ &&
        (victim == kNone || extents_[i].sequence < extents_[victim].sequence))
      victim = i;
  if (victim == kNone) return {LogStatus::kOk, 0, {}};
  return empty(victim, keeps);
}

DiskLog::Emptied DiskLog::empty(uint32_t victim, const Keeps& keeps) {
  const std::shared_ptr<std::byte> memory = net::map_file_memory(extent_bytes_);
  const LogFile::Run whole{offset_of(victim), memory.get(), extent_bytes_};
  const LogStatus found = file_.read({&whole, 1});
  if (found != LogStatus::kOk) return {found, 0, {}};
  const std::span<const std::byte> bytes(memory.get(), extent_bytes_);

  const std::vector<LogRecord*> dead = dead_in(victim, bytes);
  const auto count_dead = [&](bool gone) {
    const std::lock_guard lock(index_mutex_);
    for (LogRecord* const record : dead) record->older += gone ? -1 : 1;
  };
  count_dead(true);
  Kept kept = living_in(victim, bytes, keeps);
  uint64_t moving = 0;
  for (const LogItem& item : kept.items)
    moving += grain_ceil(item.record.size()) + entry_bytes(item.key.size());
  std::size_t moved = 0;
  LogStatus status = write_all(kept.items, moved, 0, true);
  // Removals that went with an extent, whose records did before, must not outlive its head there;
  // and what was moved is to be on the disk before this one goes.
  if (status == LogStatus::kOk) status = file_.sync();
  if (status == LogStatus::kOk) status = write_head_of(victim, last_sequence_ + 1, false);
  if (status != LogStatus::kOk) {
    count_dead(false);
    const std::lock_guard lock(index_mutex_);
    for (std::size_t i = 0; i < moved; ++i)
      if (kept.lived[i]) ++index_.find(kept.items[i].key)->older;
    return {status, 0, {}};
  }
  for (LogRecord* const record : dead)
    if (record->removed && record->older == 0) kept.dropped.push_back(record);
  std::ranges::sort(kept.dropped);
  const auto twice = std::ranges::unique(kept.dropped);
  kept.dropped.erase(twice.begin(), twice.end());
  const std::lock_guard lock(index_mutex_);
  for (LogRecord* const record : kept.dropped) forget(*record);
  return {LogStatus::kOk, extent_bytes_ - moving, std::move(kept.gone)};
}

LogStatus DiskLog::for_each(std::size_t head_bytes,
                            const std::function<void(const Living&)>& visit) {
  constexpr std::size_t kTogether = 256;
  const std::lock_guard writing(writing_);
  std::vector<const LogRecord*> all;
  index_.for_each([&](const LogRecord& record) {
    if (!record.removed) all.push_back(&record);
  });
  std::ranges::sort(all, {}, [this](const LogRecord* record) {
    return offset_of(record->extent, record->place);
  });
  std::vector<std::byte> heads(kTogether * head_bytes);
  std::vector<LogFile::Run> runs;
  for (std::size_t first = 0; first < all.size(); first += kTogether) {
    const auto some = std::span(all).subspan(first, std::min(kTogether, all.size() - first));
    runs.clear();
    for (const LogRecord* const record : some)
      runs.push_back({offset_of(record->extent, record->place),
                      heads.data() + runs.size() * head_bytes,
                      std::min<uint64_t>(head_bytes, record->bytes)});
    const LogStatus status = file_.read(runs);
    if (status != LogStatus::kOk) return status;
    for (std::size_t i = 0; i < some.size(); ++i)
      visit({some[i]->key(),
             some[i]->generation,
             some[i]->bytes,
             {runs[i].memory, static_cast<std::size_t>(runs[i].bytes)}});
  }
  return LogStatus::kOk;
}

}  // namespace inlay::store
