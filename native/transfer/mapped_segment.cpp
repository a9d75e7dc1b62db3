#include "mapped_segment.h"

#include <sys/mman.h>

#include "shared_file.h"

namespace inlay::transfer {

std::shared_ptr<const MappedSegment> MappedSegment::map(const net::Descriptor& memory,
                                                        uint64_t size, IsOpen is_open,
                                                        Status& status) {
  if (!memory.valid() || unsafe_to_map(memory, size) != nullptr) {
    status = Status::kProtocol;
    return nullptr;
  }
  void* base = mmap(nullptr, size, PROT_READ, MAP_SHARED, memory.get(), 0);
  if (base == MAP_FAILED) {
    status = Status::kTransportUnavailable;
    return nullptr;
  }
  return std::shared_ptr<const MappedSegment>(
      new MappedSegment(static_cast<std::byte*>(base), size, std::move(is_open)));
}

MappedSegment::~MappedSegment() { munmap(base_, size_); }

}  // namespace inlay::transfer
