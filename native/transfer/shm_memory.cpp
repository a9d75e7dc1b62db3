#include "shm_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <vector>

#include "../core/crc32c.h"
#include "../core/stream_copy.h"
#include "shared_file.h"

namespace inlay::transfer::shm {

namespace {

class MappedMemory : public RemoteMemory {
 public:
  MappedMemory(std::byte* base, uint64_t size, bool writable, SegmentName segment,
               std::shared_ptr<net::VisitedPage> page)
      : base_(base), size_(size), writable_(writable), segment_(segment), page_(std::move(page)) {}
  ~MappedMemory() override { munmap(base_, size_); }

  Status copy(const Slice& slice, bool streaming, uint32_t& sum) const override {
    const bool read = slice.request->op == Op::kRead;
    if (!read && !writable_) return Status::kSegmentAccess;
    const auto visit = page_->enter(segment_.slot, segment_.epoch);
    if (!visit) return Status::kSegmentClosed;
    std::byte* local = slice.request->local->base;
    Status status = Status::kOk;
    slice.each([&](const Range& range) {
      if (range.length > size_ || range.remote > size_ - range.length)
        status = Status::kSegmentRange;
      else if (read)
        copy_range(*slice.request, local + range.local, base_ + range.remote, range.length,
                   streaming, sum);
      else
        copy_range(*slice.request, base_ + range.remote, local + range.local, range.length,
                   streaming, sum);
    });
    return status;
  }

 private:
  std::byte* const base_;
  const uint64_t size_;
  const bool writable_;
  const SegmentName segment_;
  const std::shared_ptr<net::VisitedPage> page_;
};

class ReadMemory : public RemoteMemory {
 public:
  ReadMemory(const net::ProcessMemory& process, uint64_t base, SegmentName segment,
             std::shared_ptr<net::VisitedPage> page)
      : process_(process), base_(base), segment_(segment), page_(std::move(page)) {}

  Status copy(const Slice& slice, bool, uint32_t& sum) const override {
    if (slice.request->op != Op::kRead) return Status::kTransportUnavailable;
    const auto visit = page_->enter(segment_.slot, segment_.epoch);
    if (!visit) return Status::kSegmentClosed;
    const Status status = read(slice);
    if (status == Status::kOk && slice.request->checksum)  // of a piece, which is in the caches
      slice.each([&](const Range& range) {
        sum = crc32c({slice.request->local->base + range.local, range.length}, sum);
      });
    return status;
  }

 private:
  Status read(const Slice& slice) const {
    std::array<iovec, net::kMaxRanges> to;
    std::array<iovec, net::kMaxRanges> from;
    std::size_t count = 0;
    slice.each([&](const Range& range) {
      to[count] = {slice.request->local->base + range.local, range.length};
      from[count++] = {reinterpret_cast<void*>(base_ + range.remote), range.length};
    });
    return process_.read({to.data(), count}, {from.data(), count});
  }

  const net::ProcessMemory process_;
  const uint64_t base_;
  const SegmentName segment_;
  const std::shared_ptr<net::VisitedPage> page_;
};
static_assert(net::kMaxRanges <= net::ProcessMemory::kMaxPieces);

class PulledMemory : public RemoteMemory {
 public:
  PulledMemory(const net::ProcessMemory& process, const net::ProcessStamp& stamp)
      : process_(process), stamp_(stamp) {}

  // Nobody asks for the sum at this end.
  Status copy(const Slice& slice, bool streaming, uint32_t&) const override {
    const Segment& target = *slice.request->local;
    const GuardedPiece piece(target);
    Status status = Status::kOk;
    slice.each([&](const Range& range) {
      if (!target.allows(range.local, range.length, slice.request->grant)) status = Status::kGrant;
    });
    Bounce bounce{target.base, streaming};
    slice.each([&](Range range) {
      while (range.length > 0 && status == Status::kOk) {
        const uint64_t step = std::min(range.length, kBounceBytes - bounce.bytes);
        bounce.add({range.local, range.remote, step});
        range.local += step;
        range.remote += step;
        range.length -= step;
        if (bounce.bytes == kBounceBytes) status = move(bounce);
      }
    });
    return status == Status::kOk && bounce.bytes > 0 ? move(bounce) : status;
  }

 private:
  // Stays in a cache between the copy into it and out of it.
  static constexpr uint64_t kBounceBytes = uint64_t{128} << 10;

  struct Bounce {
    std::byte* const base;
    const bool streaming;
    std::array<Range, net::kMaxRanges> ranges{};
    std::size_t count = 0;
    uint64_t bytes = 0;

    void add(const Range& range) {
      ranges[count++] = range;
      bytes += range.length;
    }
  };

  Status move(Bounce& bounce) const {
    static thread_local std::vector<std::byte> buffer(kBounceBytes);
    std::array<iovec, net::kMaxRanges> from;
    for (std::size_t i = 0; i < bounce.count; ++i)
      from[i] = {reinterpret_cast<void*>(bounce.ranges[i].remote), bounce.ranges[i].length};
    const iovec to{buffer.data(), bounce.bytes};
    const Status status = process_.read({&to, 1}, {from.data(), bounce.count}, &stamp_);
    if (status != Status::kOk) return status;
    const std::byte* at = buffer.data();
    for (std::size_t i = 0; i < bounce.count; ++i) {
      const Range& range = bounce.ranges[i];
      copy_bytes(bounce.base + range.local, at, range.length, bounce.streaming);
      at += range.length;
    }
    bounce.count = 0;
    bounce.bytes = 0;
    return Status::kOk;
  }

  const net::ProcessMemory process_;
  const net::ProcessStamp stamp_;
};

}  // namespace

std::shared_ptr<const RemoteMemory> map_memory(const net::Descriptor& descriptor, uint64_t size,
                                               bool writable, SegmentName segment,
                                               std::shared_ptr<net::VisitedPage> page,
                                               Status& status) {
  if (unsafe_to_map(descriptor, size) != nullptr) {
    status = Status::kProtocol;
    return nullptr;
  }
  void* base = mmap(nullptr, size, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED,
                    descriptor.get(), 0);
  if (base == MAP_FAILED) {
    status = Status::kTransportUnavailable;
    return nullptr;
  }
  return std::make_shared<MappedMemory>(static_cast<std::byte*>(base), size, writable, segment,
                                        std::move(page));
}

std::shared_ptr<const RemoteMemory> read_memory(const net::ProcessMemory& process, uint64_t base,
                                                SegmentName segment,
                                                std::shared_ptr<net::VisitedPage> page) {
  return std::make_shared<ReadMemory>(process, base, segment, std::move(page));
}

std::shared_ptr<const RemoteMemory> pull_memory(const net::ProcessMemory& process,
                                                const net::ProcessStamp& stamp) {
  return std::make_shared<PulledMemory>(process, stamp);
}

}  // namespace inlay::transfer::shm
