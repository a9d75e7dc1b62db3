#include "mapped_segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "../core/errors.h"

namespace inlay::store {

namespace {

[[noreturn]] void refuse_segment(const std::string& path, const std::string& why) {
  throw ResourceError("the store segment " + path + " " + why);
}

void* map_file(const net::Descriptor& file, uint64_t bytes, int protection) {
  struct stat about{};
  if (!file.valid() || fstat(file.get(), &about) != 0) return MAP_FAILED;
  if (static_cast<uint64_t>(about.st_size) < bytes) return MAP_FAILED;
  return mmap(nullptr, bytes, protection, MAP_SHARED, file.get(), 0);
}

}  // namespace

MappedSegment::MappedSegment(const std::string& path, const Uuid& uuid, uint64_t bytes)
    : pins_(path + ".pins"), file_(open((path + ".segment").c_str(), O_RDWR | O_CLOEXEC)) {
  const net::Descriptor table_file(open((path + ".table").c_str(), O_RDONLY | O_CLOEXEC));
  void* table = map_file(table_file, sizeof(SegmentTable), PROT_READ);
  if (table == MAP_FAILED)
    refuse_segment(path, "has no table: " + std::string(std::strerror(errno)));
  table_ = static_cast<const SegmentTable*>(table);
  void* memory = MAP_FAILED;
  const bool is_it = table_->fixed.magic == SegmentTable::kMagic &&
                     table_->fixed_crc == table_->crc() && table_->fixed.uuid == uuid &&
                     table_->fixed.bytes == bytes;
  if (is_it) memory = map_file(file_, bytes, PROT_READ);
  if (memory == MAP_FAILED) {
    munmap(table, sizeof(SegmentTable));
    refuse_segment(path, is_it ? "cannot be mapped: " + std::string(std::strerror(errno))
                               : "is another one than the master says");
  }
  memory_ = {static_cast<const std::byte*>(memory), bytes};
}

MappedSegment::~MappedSegment() {
  munmap(const_cast<SegmentTable*>(table_), sizeof(SegmentTable));
  munmap(const_cast<std::byte*>(memory_.data()), memory_.size());
  if (!writable_.empty()) munmap(writable_.data(), writable_.size());
}

std::optional<MappedSegment::Writing> MappedSegment::write(const Extent& extent) {
  auto pin = pins_.pin(extent.offset + kWriting);
  if (!pin) return {};
  const bool is_open = std::ranges::any_of(table_->open, [&](const SegmentTable::Entry& entry) {
    return entry.offset.load(std::memory_order_relaxed) == extent.offset &&
           entry.bytes.load() == extent.bytes && entry.grant.load() == extent.grant;
  });
  if (!is_open || extent.offset + extent.bytes > memory_.size()) return {};
  const std::lock_guard lock(mapping_);
  if (writable_.empty()) {
    void* memory = map_file(file_, memory_.size(), PROT_READ | PROT_WRITE);
    if (memory == MAP_FAILED) return {};
    writable_ = {static_cast<std::byte*>(memory), memory_.size()};
  }
  return Writing{std::move(pin), writable_.subspan(extent.offset, extent.bytes)};
}

}  // namespace inlay::store
