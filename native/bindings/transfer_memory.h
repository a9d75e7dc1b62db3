// What can be registered: objects that lend their memory, and bare addresses.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "../net/socket.h"
#include "../transfer/segment.h"

namespace inlay::bindings {

// Whose loads and stores reach it.
enum class Reached : uint8_t { kByHost, kByDevice, kPerhapsByDevice };

struct Memory {
  std::byte* data;
  uint64_t size;
  bool writable;
  std::shared_ptr<const void> keeper;  // of the memory, null where that is the caller's duty
  Reached reached = Reached::kByHost;
};

// Of a buffer, a tensor (DLPack), or a pair (address, length). Throws ArgumentError for anything
// else, TransferFailure(kTransportUnavailable) for memory of a device that is not CUDA's. An
// address that the host cannot read may be a device's. `start_cuda` is called before a CUDA tensor
// is asked for its memory; what it throws is thrown.
Memory memory_of(nanobind::handle object, const std::function<void()>& start_cuda);

// Of a named file in tmpfs, which is locked as long as its bytes are held. Throws ArgumentError
// for one that cannot be had or that peers would not map, ResourceError.
struct SharedFile {
  std::shared_ptr<std::byte> bytes;
  uint64_t size;
  std::shared_ptr<const net::Descriptor> memory;  // for peers
};
SharedFile open_shared_file(const std::string& path, transfer::Access access);

}  // namespace inlay::bindings
