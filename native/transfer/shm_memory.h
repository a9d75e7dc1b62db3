// Memory of another process of this host.
#pragma once

#include <memory>
#include <string>

#include "../net/control_page.h"
#include "../net/process_memory.h"
#include "copy_queue.h"

namespace inlay::transfer::shm {

struct SegmentName {
  uint32_t slot;
  uint32_t epoch;
};

// A segment whose owner sent us its memory's descriptor. Null, with the status, when that is not
// sealed or smaller than the segment.
std::shared_ptr<const RemoteMemory> map_memory(const net::Descriptor& descriptor, uint64_t size,
                                               bool writable, SegmentName segment,
                                               std::shared_ptr<net::VisitedPage> page,
                                               Status& status);

// One that is read out of its owner's address space, where it begins at `base`. Without a page
// nobody is asked whether it is open: then its owner waits for us.
std::shared_ptr<const RemoteMemory> read_memory(const net::ProcessMemory& process, uint64_t base,
                                                SegmentName segment,
                                                std::shared_ptr<net::VisitedPage> page);

}  // namespace inlay::transfer::shm
