// What can be registered: objects that lend their memory, and bare addresses.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <memory>

namespace inlay::bindings {

struct Memory {
  std::byte* data;
  uint64_t size;
  bool writable;
  std::shared_ptr<const void> keeper;  // of the memory, null where that is the caller's duty
};

// Of a buffer, a tensor (DLPack), or a pair (address, length). Throws ArgumentError for anything
// else, TransferFailure(kTransportUnavailable) for memory of a device.
Memory memory_of(nanobind::handle object);

}  // namespace inlay::bindings
