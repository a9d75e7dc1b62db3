// Segments in named files of tmpfs, which outlive the process that owns them.
#pragma once

#include <cstdint>

#include "../net/socket.h"
#include "segment.h"

namespace inlay::transfer {

// Maps a whole file of tmpfs as the memory of a segment, all of it faulted in. The caller has made
// the file, of mode 0600, holds it open under an exclusive flock() as long as the segment is
// registered, and never makes it smaller: it unlinks it, and makes another.
// What is told to peers of this host is another descriptor of the file, which holds no lock and
// writes only where peers may: a mapping keeps the lock that its descriptor has, and a peer's would
// keep the file from the process that comes after this one.
// Throws ArgumentError for a file that peers would not map, ResourceError.
Allocation map_shared_file(const net::Descriptor& file, Access access);

// Why a process must not map so much of memory whose descriptor somebody else has sent it; null: it
// may. A touch of what was cut off ends the process, so either the memory is sealed, or it is a
// file of tmpfs, which has no seals, and then the promise of its owner stands in for them: a
// process of the same user, which alone can write the file, and which shows by its lock that it
// lives and keeps to map_shared_file(). Such a process could end this one in any other way, too.
const char* unsafe_to_map(const net::Descriptor& memory, uint64_t size);

// Another descriptor of the same file, without what locks this one has; for reading alone unless
// `writable`. Not valid where the system refuses.
net::Descriptor reopened(const net::Descriptor& file, bool writable);

}  // namespace inlay::transfer
