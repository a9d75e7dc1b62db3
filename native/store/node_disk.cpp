#include "node_disk.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "../core/crc32c.h"
#include "../core/errors.h"

namespace inlay::store {

namespace {

constexpr uint64_t kLargestExtent = uint64_t{64} << 20;
constexpr uint64_t kSmallestExtent = uint64_t{64} << 10;
constexpr uint64_t kExtents = 16;  // at least, where those are not the smallest
constexpr std::size_t kReaders = 4;
constexpr std::size_t kToldTogether = 1024;  // of what was dropped
// Of the log's room; with more that lives, what was written first goes instead of being moved.
constexpr double kCrowded = 0.8;
// Extents that are emptied for records for which the file system has no room: those kept in
// reserve, and one more.
constexpr int kTries = DiskLog::kSpareExtents + 1;

DiskLogOptions options_of(const std::string& directory, uint64_t bytes, const std::string& tenant) {
  if (directory.empty()) throw ArgumentError("disk: must name a directory");
  if (bytes < NodeDisk::kMinBytes)
    throw ArgumentError("disk: must be at least " + std::to_string(NodeDisk::kMinBytes) +
                        " bytes, got " + std::to_string(bytes));
  if (mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST)
    throw ResourceError("disk: the directory " + directory +
                        " cannot be made: " + std::strerror(errno));
  return {directory + "/objects.log", bytes,
          std::clamp(std::bit_floor(bytes / kExtents), kSmallestExtent, kLargestExtent), tenant};
}

// A file that ends before its time is not whole: nobody shortens one in order.
bool has_all_bytes(const transfer::FileOptions& file) {
  struct stat found{};
  return stat(file.path.c_str(), &found) != 0 || static_cast<uint64_t>(found.st_size) >= *file.size;
}

transfer::DiskFile open_file(const transfer::FileOptions& options,
                             const std::shared_ptr<net::FileQueue>& queue) {
  try {
    return transfer::DiskFile(options, queue);
  } catch (const TransferFailure& failure) {
    if (failure.status != Status::kSegmentOverlap) throw ResourceError(failure.what());
    throw ArgumentError("disk: '" + options.path +
                        "' is another node's: give this one a directory of its own");
  }
}

bool is_hard_pinned(std::span<const std::byte> record) {
  const auto parsed = parse_record(record, record.size());
  return parsed && (parsed->header.flags & kHardPin) != 0;
}

}  // namespace

Advertise::Record advertised(const RecordHeader& header, std::string_view key) {
  Advertise::Record record;
  record.key = key;
  record.record_bytes = header.bytes;
  record.payload_bytes = header.payload_bytes;
  record.generation = header.generation;
  record.group = header.group;
  record.flags = header.flags;
  record.wanted_replicas = header.replicas;
  return record;
}

void place_record(std::span<std::byte> to, std::span<const std::byte> record) {
  std::memcpy(to.data() + sizeof(RecordHeader), record.data() + sizeof(RecordHeader),
              record.size() - sizeof(RecordHeader));
  std::atomic_thread_fence(std::memory_order_release);
  RecordHeader header;
  std::memcpy(&header, record.data(), sizeof(header));
  header.state = static_cast<uint32_t>(RecordState::kLive);
  std::memcpy(to.data(), &header, sizeof(header));
}

bool is_record(std::span<const std::byte> bytes, std::string_view key, uint64_t generation) {
  const auto parsed = parse_record(bytes, bytes.size());
  return parsed && parsed->header.generation == generation && parsed->key == key &&
         parsed->header.bytes == bytes.size() &&
         crc32c(bytes.subspan(parsed->header.payload_offset, parsed->header.payload_bytes)) ==
             parsed->header.payload_crc;
}

NodeDisk::NodeDisk(const std::string& directory, uint64_t bytes, const std::string& tenant)
    : options_(options_of(directory, bytes, tenant)),
      is_whole_(has_all_bytes(file_of(options_))),
      queue_(std::make_shared<net::FileQueue>()),
      file_(open_file(file_of(options_), queue_)),
      log_(std::make_unique<DiskLog>(file_, options_)),
      writer_(1),
      readers_(kReaders) {
  is_whole_ = is_whole_ && !log_->lost_extents();
}

NodeDisk::~NodeDisk() {
  finish();
  queue_->stop();
}

uint32_t NodeDisk::epoch() const {
  return std::max(log_->epoch(), epoch_of(log_->newest_generation()));
}

void NodeDisk::submit(CallQueue& queue, std::function<void()> job) {
  {
    const std::lock_guard lock(mutex_);
    ++under_way_;
  }
  const auto end = [this] {
    const std::lock_guard lock(mutex_);
    if (--under_way_ == 0) idle_.notify_all();
  };
  try {
    queue.submit([job = std::move(job), end] {
      job();
      end();
    });
  } catch (...) {
    end();
    throw;
  }
}

void NodeDisk::finish() {
  std::unique_lock lock(mutex_);
  idle_.wait(lock, [this] { return under_way_ == 0; });
}

void NodeDisk::demote(uint64_t command, std::vector<Demotion> records, Then done) {
  submit(writer_, [this, command, records = std::move(records), done = std::move(done)] {
    const auto began = std::chrono::steady_clock::now();
    Done told;
    told.command = command;
    told.missing = write(records);
    uint64_t bytes = 0;
    for (const Demotion& one : records) bytes += one.record.size();
    for (const uint32_t at : told.missing) bytes -= records[at].record.size();
    count(written_, records.size() - told.missing.size(), bytes, told.missing.size(), began);
    done(std::move(told));
    make_room();
  });
}

void NodeDisk::remove(uint64_t command, std::vector<Removal> removals, Then done) {
  submit(writer_, [this, command, removals = std::move(removals), done = std::move(done)] {
    Done told;
    told.command = command;
    if (!write_removals(removals)) told.outcome = Done::Outcome::kFailed;
    done(std::move(told));
  });
}

void NodeDisk::promote(uint64_t command, std::string key, uint64_t generation,
                       std::span<std::byte> into, Then done) {
  submit(readers_, [this, command, key = std::move(key), generation, into, done = std::move(done)] {
    const auto began = std::chrono::steady_clock::now();
    Done told;
    told.command = command;
    const bool there = read(key, generation, into, told);
    count(read_, there ? 1 : 0, there ? into.size() : 0, there ? 0 : 1, began);
    if (!there) {
      told.outcome = Done::Outcome::kFailed;
      told.missing = {0};
    }
    done(std::move(told));
  });
}

// Returns the positions of those that the disk does not have afterwards.
std::vector<uint32_t> NodeDisk::write(const std::vector<Demotion>& records) {
  std::vector<LogItem> items;
  for (const Demotion& one : records)
    if (!one.record.empty() && one.record.size() <= log_->max_record_bytes())
      items.push_back({one.key, one.generation, one.record});
  std::span<const LogItem> left = items;
  LogStatus status = failed_ ? LogStatus::kFailed : LogStatus::kOk;
  for (int tries = 0; status == LogStatus::kOk && !left.empty();) {
    const auto appended = log_->append(left);
    left = left.subspan(appended.count);
    status = appended.status;
    if (appended.count > 0) tries = 0;
    if (status == LogStatus::kFull && tries++ < kTries && empty_one()) status = LogStatus::kOk;
  }
  if (status != LogStatus::kFailed && left.size() < items.size()) status = log_->sync();
  if (status == LogStatus::kFailed) give_up_log();
  std::vector<uint32_t> missing;
  for (uint32_t i = 0; i < records.size(); ++i) {
    const auto found = failed_ ? std::nullopt : log_->find(records[i].key);
    if (records[i].record.empty() || !found || found->generation != records[i].generation)
      missing.push_back(i);
  }
  return missing;
}

bool NodeDisk::write_removals(const std::vector<Removal>& removals) {
  std::vector<DiskLog::Removal> all;
  for (const Removal& one : removals) all.push_back({one.key, one.generation});
  LogStatus status = failed_ ? LogStatus::kFailed : log_->remove(all);
  for (int tries = 0; status == LogStatus::kFull && tries < kTries && empty_one(); ++tries)
    status = log_->remove(all);
  if (status == LogStatus::kOk) status = log_->sync();
  // A record that was to go must not be found again.
  if (status != LogStatus::kOk) give_up_log();
  return status == LogStatus::kOk;
}

bool NodeDisk::read(const std::string& key, uint64_t generation, std::span<std::byte> into,
                    Done& told) {
  const auto found = log_->find(key);
  if (!found || found->generation != generation || found->bytes != into.size()) return false;
  // Whole blocks come past the page cache.
  const std::unique_ptr<std::byte, decltype(&std::free)> memory(
      static_cast<std::byte*>(std::aligned_alloc(kLogBlock, LogRun::block_ceil(into.size()))),
      &std::free);
  if (memory == nullptr) return false;
  const std::span<std::byte> record(memory.get(), into.size());
  DiskLog::Read read{key, generation, 0, record};
  log_->read({&read, 1});
  if (read.status != LogStatus::kOk || !is_record(record, key, generation)) return false;
  place_record(into, record);
  const RecordHeader header = parse_record(record, record.size())->header;
  told.parent = parent_in(header, record);
  told.recompute_us = header.recompute_us;
  return true;
}

// Ahead of who needs it.
void NodeDisk::make_room() {
  while (!failed_ && log_->room().free_extents <= DiskLog::kSpareExtents)
    if (!empty_one()) return;
}

bool NodeDisk::empty_one() {
  const DiskLog::Room room = log_->room();
  const double usable =
      static_cast<double>((room.extents - DiskLog::kSpareExtents) * log_->extent_bytes());
  const auto emptied = [this](DiskLog::Emptied result) {
    const std::lock_guard lock(mutex_);
    for (DiskLog::Gone& one : result.gone) dropped_.push_back({std::move(one.key), one.generation});
    return result.status == LogStatus::kOk && result.freed_bytes > 0;
  };
  if (static_cast<double>(room.living_bytes) < kCrowded * usable && emptied(log_->compact()))
    return true;
  return emptied(log_->give_up(is_hard_pinned));
}

// Nothing of it is read after a restart, what could not be removed among it.
void NodeDisk::give_up_log() {
  if (failed_.exchange(true)) return;
  unlink(file_.path.c_str());
}

void NodeDisk::adopt(uint32_t epoch, bool drops_mutable, const Visit& visit) {
  std::vector<Removal> removed;
  std::vector<std::byte> bytes;
  const LogStatus status =
      log_->for_each(sizeof(RecordHeader) + kMaxKeyBytes, [&](const DiskLog::Living& living) {
        const auto record = parse_record(living.head, living.bytes);
        const bool good = record && record->key == living.key &&
                          record->header.generation == living.generation &&
                          record->header.bytes == living.bytes;
        if (!good || (drops_mutable && (record->header.flags & kMutable) != 0)) {
          removed.push_back({std::string(living.key), living.generation});
          return;
        }
        visit(advertised(record->header, living.key));
      });
  if (status != LogStatus::kOk || (!removed.empty() && !write_removals(removed)) ||
      log_->follow(epoch) != LogStatus::kOk) {
    give_up_log();
    throw ResourceError("disk '" + file_.path + "' fails: what is on it is not used");
  }
  is_whole_ = true;
  const std::lock_guard lock(mutex_);
  dropped_.clear();
}

void NodeDisk::count(Moved& moved, uint64_t records, uint64_t bytes, uint64_t missing,
                     std::chrono::steady_clock::time_point began) {
  const auto took = std::chrono::steady_clock::now() - began;
  const auto us = std::chrono::ceil<std::chrono::microseconds>(took).count();
  const auto bucket = std::bit_width(static_cast<uint64_t>(std::max<int64_t>(us - 1, 0)));
  const std::lock_guard lock(mutex_);
  moved.records += records;
  moved.bytes += bytes;
  moved.missing += missing;
  moved.seconds += std::chrono::duration<double>(took).count();
  ++moved.calls[std::min<std::size_t>(static_cast<std::size_t>(bucket), Moved::kBuckets)];
}

NodeDisk::Figures NodeDisk::figures() {
  Figures figures;
  if (!failed_) figures.log = log_->figures();
  const std::lock_guard lock(mutex_);
  figures.read = read_;
  figures.written = written_;
  return figures;
}

NodeDisk::News NodeDisk::news() {
  News news;
  news.used_bytes = failed_ ? 0 : log_->room().living_bytes;
  const std::lock_guard lock(mutex_);
  const auto end =
      dropped_.begin() + static_cast<std::ptrdiff_t>(std::min(dropped_.size(), kToldTogether));
  news.dropped.assign(dropped_.begin(), end);
  return news;
}

void NodeDisk::forget_dropped(std::size_t count) {
  const std::lock_guard lock(mutex_);
  dropped_.erase(dropped_.begin(), dropped_.begin() + static_cast<std::ptrdiff_t>(count));
}

}  // namespace inlay::store
