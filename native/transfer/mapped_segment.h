// A segment of another process of this host, or of this one, in this process's address space.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "../core/status.h"
#include "../net/socket.h"

namespace inlay::transfer {

class MappedSegment {
 public:
  using IsOpen = std::function<bool()>;

  // For reading alone. Null, with the status, where that memory is not safe to map, or the system
  // refuses.
  static std::shared_ptr<const MappedSegment> map(const net::Descriptor& memory, uint64_t size,
                                                  IsOpen is_open, Status& status);
  ~MappedSegment();
  MappedSegment(const MappedSegment&) = delete;
  MappedSegment& operator=(const MappedSegment&) = delete;

  // Readable as long as this object lives, whatever becomes of the owner. What they hold is the
  // owner's matter: nothing keeps it from writing them.
  std::span<const std::byte> bytes() const { return {base_, size_}; }
  // The owner still offers the segment. False for good once it closed it or ended, also when the
  // link to it broke: what the bytes mean is nobody's word any more, so map it again.
  bool is_open() const { return is_open_(); }

 private:
  MappedSegment(std::byte* base, uint64_t size, IsOpen is_open)
      : base_(base), size_(size), is_open_(std::move(is_open)) {}

  std::byte* const base_;
  const uint64_t size_;
  const IsOpen is_open_;
};

}  // namespace inlay::transfer
