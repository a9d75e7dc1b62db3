#include "store_segment.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>

#include "../core/crc32c.h"
#include "../core/errors.h"

namespace inlay::store {

namespace {

constexpr uint64_t kPage = 4096;
// So long a piece of a peer's write may take to land, some MiB at most, before others get a turn.
constexpr std::chrono::milliseconds kPiece(20);
constexpr std::string_view kTableEnd = ".table";
constexpr time_t kMakingSeconds = 60;

std::string last_error() { return std::strerror(errno); }

void make_private_directory(const std::string& path) {
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST)
    throw ResourceError("the directory " + path +
                        " for store segments cannot be made: " + last_error());
  struct stat about{};
  if (lstat(path.c_str(), &about) != 0 || !S_ISDIR(about.st_mode) || about.st_uid != geteuid() ||
      (about.st_mode & 0077) != 0)
    throw ResourceError(path + " must be a directory of user " + std::to_string(geteuid()) +
                        " with mode 0700; remove it");
}

SegmentTable::Name name_of(const std::string& text) {
  SegmentTable::Name name{};
  std::ranges::copy(text, name.begin());
  return name;
}

void require_name(const char* what, const std::string& text) {
  const bool is_plain = std::ranges::all_of(text, [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_' || c == '.';
  });
  if (text.empty() || text.size() >= SegmentTable::kMaxNameBytes || !is_plain ||
      text.front() == '.')
    throw ArgumentError(
        std::string(what) + ": must have 1.." + std::to_string(SegmentTable::kMaxNameBytes - 1) +
        " letters, digits, '-', '_' or '.', and not begin with '.', got '" + text + "'");
}

}  // namespace

std::string hex(const Uuid& uuid) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (const std::byte byte : uuid) {
    text += kDigits[std::to_integer<unsigned>(byte) >> 4];
    text += kDigits[std::to_integer<unsigned>(byte) & 15];
  }
  return text;
}

std::string store_directory() {
  const std::string parent = "/dev/shm/inlay-" + std::to_string(geteuid());
  make_private_directory(parent);
  make_private_directory(parent + "/store");
  return parent + "/store";
}

bool StoreSegment::map(uint64_t bytes) {
  void* table =
      mmap(nullptr, sizeof(SegmentTable), PROT_READ | PROT_WRITE, MAP_SHARED, table_file_.get(), 0);
  if (table == MAP_FAILED) return false;
  table_ = static_cast<SegmentTable*>(table);
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file_.get(), 0);
  if (memory == MAP_FAILED) return false;
  memory_ = {static_cast<std::byte*>(memory), bytes};
  madvise(memory, bytes, MADV_HUGEPAGE);
  return true;
}

bool StoreSegment::lock() {
  const auto lock_one = [](const net::Descriptor& file) {
    return !file.valid() || flock(file.get(), LOCK_EX | LOCK_NB) == 0;
  };
  return lock_one(table_file_) && lock_one(file_);
}

void StoreSegment::require_names(const std::string& node, const std::string& tenant) {
  require_name("node", node);
  require_name("tenant", tenant);
}

std::unique_ptr<StoreSegment> StoreSegment::make(const Options& options) {
  require_names(options.node, options.tenant);
  if (options.bytes < kPage || options.bytes % kPage != 0)
    throw ArgumentError("memory: must be a multiple of 4 KiB above 0, got " +
                        std::to_string(options.bytes) + " bytes");
  std::unique_ptr<StoreSegment> segment(new StoreSegment());
  net::fill_random(segment->uuid_);
  segment->tenant_ = options.tenant;
  segment->path_ = options.directory + "/" + hex(segment->uuid_);
  const std::string& path = segment->path_;
  constexpr int kFlags = O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC;
  // Somebody may delete the directory as long as it is empty.
  for (int tries = 0; tries < 3 && !segment->table_file_.valid(); ++tries) {
    make_private_directory(options.directory);
    segment->table_file_ = net::Descriptor(::open((path + ".table").c_str(), kFlags, 0600));
  }
  struct statvfs room{};
  const bool known = statvfs(options.directory.c_str(), &room) == 0;
  if (known && room.f_bavail * room.f_frsize < options.bytes) {
    segment->unlink_files();
    throw ResourceError("memory: " + options.directory + " has room for " +
                        std::to_string(room.f_bavail * room.f_frsize) + " bytes, not for " +
                        std::to_string(options.bytes) +
                        ": contribute less, or give /dev/shm more room (mount -o "
                        "remount,size=..., docker run --shm-size)");
  }
  segment->file_ = net::Descriptor(::open((path + ".segment").c_str(), kFlags, 0600));
  if (!segment->table_file_.valid() || !segment->file_.valid() || !segment->lock() ||
      posix_fallocate(segment->table_file_.get(), 0, sizeof(SegmentTable)) != 0 ||
      ftruncate(segment->file_.get(), static_cast<off_t>(options.bytes)) != 0 ||
      posix_fallocate(segment->file_.get(), 0, kPage) != 0 || !segment->map(options.bytes)) {
    const std::string why = last_error();
    segment->unlink_files();
    throw ResourceError("a store segment of " + std::to_string(options.bytes) + " bytes in " +
                        options.directory + " cannot be made: " + why);
  }
  segment->pins_ = std::make_unique<PinPage>(path + ".pins");
  segment->put_filler(0, options.bytes);
  SegmentTable& table = *segment->table_;
  table.fixed = {SegmentTable::kMagic, options.bytes,         options.keeps ? 1U : 0U,
                 segment->uuid_,       name_of(options.node), name_of(options.tenant)};
  table.epoch.store(options.epoch);
  table.fixed_crc = table.crc();
  return segment;
}

std::unique_ptr<StoreSegment> StoreSegment::adopt(const std::string& directory,
                                                  const std::string& uuid_text) {
  std::unique_ptr<StoreSegment> segment(new StoreSegment());
  segment->path_ = directory + "/" + uuid_text;
  const std::string& path = segment->path_;
  segment->table_file_ = net::Descriptor(::open((path + ".table").c_str(), O_RDWR | O_CLOEXEC));
  segment->file_ = net::Descriptor(::open((path + ".segment").c_str(), O_RDWR | O_CLOEXEC));
  if (!segment->table_file_.valid() || !segment->lock()) return nullptr;
  struct stat table_about{};
  struct stat about{};
  const bool is_mapped = segment->file_.valid() &&
                         fstat(segment->table_file_.get(), &table_about) == 0 &&
                         fstat(segment->file_.get(), &about) == 0 &&
                         static_cast<std::size_t>(table_about.st_size) >= sizeof(SegmentTable) &&
                         about.st_size > 0 && segment->map(static_cast<uint64_t>(about.st_size));
  const SegmentTable* table = segment->table_;
  if (!is_mapped || table->fixed.magic != SegmentTable::kMagic ||
      table->fixed_crc != table->crc() || table->fixed.bytes != segment->memory_.size() ||
      hex(table->fixed.uuid) != uuid_text) {
    segment->unlink_files();
    return nullptr;
  }
  segment->uuid_ = table->fixed.uuid;
  segment->tenant_ = table->fixed.tenant.data();
  segment->pins_ = std::make_unique<PinPage>(path + ".pins");
  if (!segment->mend_chain()) return nullptr;
  return segment;
}

std::vector<std::string> StoreSegment::find(const std::string& directory) {
  std::vector<std::string> found;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(directory, none))
    if (entry.path().extension() == kTableEnd) found.push_back(entry.path().stem().string());
  std::ranges::sort(found);
  return found;
}

void StoreSegment::clear_abandoned() {
  std::error_code none;
  for (const auto& directory : std::filesystem::directory_iterator(store_directory(), none)) {
    for (const std::string& uuid : find(directory.path())) {
      StoreSegment segment;
      segment.path_ = directory.path() / uuid;
      const net::Descriptor file(::open((segment.path_ + ".table").c_str(), O_RDWR | O_CLOEXEC));
      SegmentTable::Fixed fixed{};
      struct stat about{};
      const bool is_read = pread(file.get(), &fixed, sizeof(fixed), 0) == sizeof(fixed) &&
                           fixed.magic == SegmentTable::kMagic;
      // One that was just made is not locked and filled in yet.
      const bool is_old =
          fstat(file.get(), &about) == 0 && about.st_mtime + kMakingSeconds < time(nullptr);
      if (is_read ? fixed.keeps != 0 : !is_old) continue;
      // Who has the lock lives.
      if (flock(file.get(), LOCK_EX | LOCK_NB) == 0) segment.unlink_files();
    }
    rmdir(directory.path().c_str());
  }
}

StoreSegment::~StoreSegment() {
  if (table_ != nullptr) munmap(table_, sizeof(SegmentTable));
  if (!memory_.empty()) munmap(memory_.data(), memory_.size());
}

void StoreSegment::unlink_files() {
  for (const char* end : {".segment", ".pins", ".table"}) unlink((path_ + end).c_str());
  rmdir(std::filesystem::path(path_).parent_path().c_str());
}

void StoreSegment::set_keeps(bool keeps) {
  table_->fixed.keeps = keeps ? 1 : 0;
  table_->fixed_crc = table_->crc();
}

uint32_t StoreSegment::epoch() const { return table_->epoch.load(); }

void StoreSegment::follow(uint32_t epoch) {
  const std::lock_guard lock(mutex_);
  if (epoch > table_->epoch.load()) table_->epoch.store(epoch);
}

bool StoreSegment::populate(const std::atomic<bool>& stop) {
  constexpr uint64_t kStep = uint64_t{16} << 20;
  for (uint64_t at = 0; at < memory_.size() && !stop.load(); at += kStep) {
    const uint64_t step = std::min(kStep, memory_.size() - at);
    if (posix_fallocate(file_.get(), static_cast<off_t>(at), static_cast<off_t>(step)) != 0)
      return false;
    ready_.store(at + step);
    madvise(memory_.data() + at, step, MADV_POPULATE_WRITE);
  }
  return true;
}

void StoreSegment::put_filler(uint64_t offset, uint64_t bytes) {
  const RecordHeader filler = make_filler(bytes);
  std::memcpy(memory_.data() + offset, &filler, sizeof(filler));
}

bool StoreSegment::contains(uint64_t offset, uint64_t bytes) const {
  return offset % kGrain == 0 && bytes % kGrain == 0 && bytes <= memory_.size() &&
         offset <= memory_.size() - bytes;
}

bool StoreSegment::open(const ExtentEntry& extent, uint64_t before, uint64_t behind) {
  const uint64_t end = extent.offset + extent.bytes;
  if (extent.bytes == 0 || before > extent.offset ||
      !contains(extent.offset - before, before + extent.bytes + behind))
    return false;
  // Memory that the system has not would end who touches it.
  const auto reserve = [this](uint64_t offset, uint64_t bytes) {
    return offset + bytes <= ready_.load() ||
           posix_fallocate(file_.get(), static_cast<off_t>(offset), static_cast<off_t>(bytes)) == 0;
  };
  if (!reserve(extent.offset, extent.bytes) || (behind > 0 && !reserve(end, kGrain))) return false;
  const std::lock_guard lock(mutex_);
  const auto entry =
      std::ranges::find_if(table_->open, [](const auto& e) { return e.bytes.load() == 0; });
  if (entry == table_->open.end()) return false;
  // From behind to the front: the chain that leads past them stays whole until the last step, which
  // makes it the new one.
  if (behind > 0) put_filler(end, behind);
  put_filler(extent.offset, extent.bytes);
  if (before > 0) put_filler(extent.offset - before, before);
  const auto number = static_cast<uint32_t>(entry - table_->open.begin());
  if (number >= table_->num_used.load()) table_->num_used.store(number + 1);
  entry->offset.store(extent.offset);
  entry->first_generation.store(extent.first_generation);
  entry->bytes.store(extent.bytes);
  entry->grant.store(extent.grant);
  return true;
}

SegmentTable::Entry* StoreSegment::find_open(uint64_t offset) const {
  const auto entry = std::ranges::find_if(table_->open, [&](const auto& e) {
    return e.bytes.load() != 0 && e.offset.load() == offset;
  });
  return entry == table_->open.end() ? nullptr : &*entry;
}

void StoreSegment::guard(std::shared_ptr<transfer::Segment> registered) {
  class Granted final : public transfer::Guard {
   public:
    explicit Granted(const SegmentTable& table) : table_(table) {}
    bool allows(uint64_t offset, uint64_t length, uint64_t grant) const override {
      return table_.is_granted(offset, length, grant);
    }

   private:
    const SegmentTable& table_;
  };
  registered->guard = std::make_shared<Granted>(*table_);
  registered_ = std::move(registered);
}

// Of an extent whose grant is gone: nobody writes there any more, and nobody will.
bool StoreSegment::is_quiet(uint64_t offset) const {
  return pins_->pinned({offset + kWriting}).empty() &&
         (registered_ == nullptr ||
          registered_->await_pieces(std::chrono::steady_clock::now() + kPiece));
}

// Nobody begins to write there any more, and who had begun has ended. False: one was stopped.
bool StoreSegment::shut(uint64_t offset) {
  for (int wait_ms = 1;; wait_ms *= 2) {
    {
      const std::lock_guard lock(mutex_);
      if (SegmentTable::Entry* entry = find_open(offset)) entry->grant.store(0);
      if (is_quiet(offset)) return true;
    }
    if (wait_ms > 1000) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(wait_ms));
  }
}

bool StoreSegment::close(uint64_t offset, std::span<const Command::Range> fillers) {
  const std::lock_guard lock(mutex_);
  SegmentTable::Entry* entry = find_open(offset);
  if (entry == nullptr) return true;
  entry->grant.store(0);
  if (!is_quiet(offset)) return false;
  const uint64_t end = offset + entry->bytes.load();
  for (const auto& [from, bytes] : fillers)
    if (contains(from, bytes) && bytes > 0 && from >= offset && from + bytes <= end)
      put_filler(from, bytes);
  entry->bytes.store(0);
  return true;
}

std::vector<ExtentEntry> StoreSegment::open_extents() const {
  const std::lock_guard lock(mutex_);
  std::vector<ExtentEntry> open;
  for (const SegmentTable::Entry& entry : table_->open)
    if (const uint64_t bytes = entry.bytes.load(); bytes != 0)
      open.push_back(
          {entry.offset.load(), bytes, entry.grant.load(), entry.first_generation.load()});
  std::ranges::sort(open, {}, &ExtentEntry::offset);
  return open;
}

bool StoreSegment::has_open(uint64_t offset, uint64_t grant) const {
  const std::lock_guard lock(mutex_);
  const SegmentTable::Entry* const entry = find_open(offset);
  return entry != nullptr && grant != 0 && entry->grant.load() == grant;
}

void StoreSegment::kill(std::span<const RecordRef> victims) {
  for (const RecordRef& victim : victims) {
    if (!contains(victim.offset, kGrain)) continue;
    std::byte* record = memory_.data() + victim.offset;
    const auto& header = *reinterpret_cast<const RecordHeader*>(record);
    if (header.magic != RecordHeader::kMagic || header.generation != victim.generation) continue;
    uint32_t live = static_cast<uint32_t>(RecordState::kLive);
    state_at(record).compare_exchange_strong(live, static_cast<uint32_t>(RecordState::kDead));
  }
}

std::vector<StoreSegment::Entry> StoreSegment::records() const {
  std::vector<Entry> found;
  std::vector<uint64_t> dead;
  const auto walk = [&](uint64_t from, uint64_t to) {
    walk_records(memory_, from, to, [&](uint64_t offset, const ParsedRecord& record) {
      const RecordState state = load_state(memory_.data() + offset);
      if (state == RecordState::kDead) dead.push_back(offset);
      if (state != RecordState::kFiller)
        found.push_back({offset, record.header, record.key, state == RecordState::kLive});
      return true;
    });
  };
  uint64_t at = 0;
  for (const ExtentEntry& extent : open_extents()) {
    walk(at, extent.offset);
    at = extent.offset + extent.bytes;
    if (const auto stuck = stuck_.find(extent.offset); stuck != stuck_.end())
      walk(extent.offset, stuck->second.offset);
  }
  walk(at, memory_.size());
  const std::vector<uint64_t> read = pins_->pinned(dead);
  std::erase_if(found, [&](const Entry& entry) {
    return !entry.is_living && !std::ranges::binary_search(read, entry.offset);
  });
  for (const auto& [extent, rest] : stuck_)
    if (rest.bytes > 0) found.push_back({rest.offset, make_filler(rest.bytes), {}, false});
  std::ranges::sort(found, {}, &Entry::offset);
  return found;
}

std::vector<uint64_t> StoreSegment::pinned(const std::vector<uint64_t>& offsets) {
  std::vector<uint64_t> found = pins_->pinned(offsets);
  std::erase_if(stuck_, [this](const auto& one) { return close(one.first, {&one.second, 1}); });
  for (const auto& [extent, rest] : stuck_)
    if (std::ranges::binary_search(offsets, rest.offset)) found.push_back(rest.offset);
  std::ranges::sort(found);
  const auto repeated = std::ranges::unique(found);
  found.erase(repeated.begin(), repeated.end());
  return found;
}

// What its client wrote before it or its node ended: records that are whole, of generations that it
// was given, up to the first that is not.
void StoreSegment::close_whole(const ExtentEntry& extent) {
  const bool quiet = shut(extent.offset);
  const uint64_t end = extent.offset + extent.bytes;
  const auto is_whole = [&](uint64_t offset, const ParsedRecord& record) {
    const RecordHeader& header = record.header;
    // A filler in front of a record that had to be aligned, or of one that was taken back.
    if (header.key_bytes == 0) return header.bytes < end - offset;
    return header.generation >= extent.first_generation &&
           crc32c(memory_.subspan(offset + header.payload_offset, header.payload_bytes)) ==
               header.payload_crc;
  };
  const uint64_t written = walk_records(memory_, extent.offset, end, is_whole);
  const Command::Range rest{written, end - written};
  if (!quiet || !close(extent.offset, {&rest, 1})) stuck_[extent.offset] = rest;
}

bool StoreSegment::close_all() {
  stuck_.clear();
  for (const ExtentEntry& extent : open_extents())
    if (contains(extent.offset, extent.bytes))
      close_whole(extent);
    else if (!close(extent.offset, {}))
      stuck_[extent.offset] = {};
  return stuck_.empty();
}

// Afterwards all is one chain. Where memory was damaged, what lies behind that is given up, up to
// where a chain is known to begin.
bool StoreSegment::mend_chain() {
  const std::vector<ExtentEntry> open = open_extents();
  if (!close_all()) return false;
  const auto keep = [](uint64_t, const ParsedRecord&) { return true; };
  uint64_t at = 0;
  while ((at = walk_records(memory_, at, memory_.size(), keep)) < memory_.size()) {
    const auto next = std::ranges::upper_bound(open, at, {}, &ExtentEntry::offset);
    const uint64_t begin = next == open.end() ? memory_.size() : next->offset;
    put_filler(at, begin - at);
    at = begin;
  }
  return true;
}

}  // namespace inlay::store
