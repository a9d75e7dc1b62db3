#include "host_segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>

#include "../core/errors.h"
#include "../transfer/shared_file.h"

namespace inlay::store {

namespace {

[[noreturn]] void refuse_segment(const std::string& path, const std::string& why) {
  throw ResourceError("the store segment " + path + " " + why);
}

const SegmentTable* map_table(const net::Descriptor& file) {
  struct stat about{};
  if (!file.valid() || fstat(file.get(), &about) != 0 ||
      static_cast<uint64_t>(about.st_size) < sizeof(SegmentTable))
    return nullptr;
  void* table = mmap(nullptr, sizeof(SegmentTable), PROT_READ, MAP_SHARED, file.get(), 0);
  return table == MAP_FAILED ? nullptr : static_cast<const SegmentTable*>(table);
}

}  // namespace

HostSegment::HostSegment(const std::string& path, const Uuid& uuid, uint64_t bytes)
    : pins_(path + ".pins"), file_(open((path + ".segment").c_str(), O_RDWR | O_CLOEXEC)) {
  table_ = map_table(net::Descriptor(open((path + ".table").c_str(), O_RDONLY | O_CLOEXEC)));
  if (table_ == nullptr) refuse_segment(path, "has no table: " + std::string(std::strerror(errno)));
  const bool is_it = table_->fixed.magic == SegmentTable::kMagic &&
                     table_->fixed_crc == table_->crc() && table_->fixed.uuid == uuid &&
                     table_->fixed.bytes == bytes;
  const char* why = is_it ? nullptr : "it is another one than the master says";
  // Records say themselves whether they are still good, so nobody asks about the owner later.
  Status status = Status::kOk;
  if (why == nullptr) why = transfer::unsafe_to_map(file_, bytes);
  if (why == nullptr)
    memory_ = transfer::MappedSegment::map(file_, bytes, [] { return true; }, status);
  if (memory_ != nullptr) return;
  munmap(const_cast<SegmentTable*>(table_), sizeof(SegmentTable));
  refuse_segment(path,
                 std::string("cannot be mapped: ") + (why != nullptr ? why : std::strerror(errno)));
}

HostSegment::~HostSegment() {
  munmap(const_cast<SegmentTable*>(table_), sizeof(SegmentTable));
  if (!writable_.empty()) munmap(writable_.data(), writable_.size());
}

std::optional<HostSegment::Writing> HostSegment::write(const Extent& extent) {
  auto pin = pins_.pin(extent.offset + kWriting);
  if (!pin) return {};
  if (!table_->is_granted(extent.offset, extent.bytes, extent.grant) ||
      extent.offset + extent.bytes > memory().size())
    return {};
  const std::lock_guard lock(mapping_);
  if (writable_.empty()) {
    void* all = mmap(nullptr, memory().size(), PROT_READ | PROT_WRITE, MAP_SHARED, file_.get(), 0);
    if (all == MAP_FAILED) return {};
    writable_ = {static_cast<std::byte*>(all), memory().size()};
  }
  return Writing{std::move(pin), writable_.subspan(extent.offset, extent.bytes)};
}

}  // namespace inlay::store
