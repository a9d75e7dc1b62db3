// What can be registered: objects that lend their memory, and bare addresses.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

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

}  // namespace inlay::bindings
