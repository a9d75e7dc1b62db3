// A segment of this host, as clients use it: mapped from its files, which only processes of one
// user can open.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>

#include "../transfer/mapped_segment.h"
#include "pin_page.h"
#include "segment_table.h"

namespace inlay::store {

class HostSegment {
 public:
  // `path` without ending. Throws ResourceError, with the reason, when it is not there or not for
  // this process.
  HostSegment(const std::string& path, const Uuid& uuid, uint64_t bytes);
  ~HostSegment();
  HostSegment(const HostSegment&) = delete;
  HostSegment& operator=(const HostSegment&) = delete;

  // Read-only: a write ends the process.
  std::span<const std::byte> memory() const { return memory_->bytes(); }
  PinBoard& pins() { return pins_; }

  // The bytes of an open extent. While it lives, its owner does not close the extent: keep it
  // short.
  struct Writing {
    PinBoard::Pin pin;
    std::span<std::byte> bytes;
  };
  // None: it is closed, or the page of pins is full.
  std::optional<Writing> write(const Extent& extent);

 private:
  std::shared_ptr<const transfer::MappedSegment> memory_;
  const SegmentTable* table_ = nullptr;
  PinBoard pins_;
  std::mutex mapping_;
  std::span<std::byte> writable_;  // since the first write
  net::Descriptor file_;
};

}  // namespace inlay::store
