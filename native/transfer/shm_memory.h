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

// A segment whose owner sent us its memory's descriptor. Null, with the status, when that is
// not safe to map.
std::shared_ptr<const RemoteMemory> map_memory(const net::Descriptor& descriptor, uint64_t size,
                                               bool writable, SegmentName segment,
                                               std::shared_ptr<net::VisitedPage> page,
                                               Status& status);

// One that is read out of its owner's address space, where it begins at `base`.
std::shared_ptr<const RemoteMemory> read_memory(const net::ProcessMemory& process, uint64_t base,
                                                SegmentName segment,
                                                std::shared_ptr<net::VisitedPage> page);

// The memory of an initiator, at its addresses, as long as its stamp says that a write still wants
// it: bytes pass through a buffer, and what was read too late does not land.
std::shared_ptr<const RemoteMemory> pull_memory(const net::ProcessMemory& process,
                                                const net::ProcessStamp& stamp);

}  // namespace inlay::transfer::shm
