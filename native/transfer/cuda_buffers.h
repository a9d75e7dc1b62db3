// Buffers on devices for those who move host memory alone: host memory stands for each, and bytes
// go between the two when they are asked to. No engine is needed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>

#include "../net/socket.h"
#include "cuda_devices.h"
#include "cuda_memory.h"

namespace inlay::transfer {

class CudaBuffers {
 public:
  explicit CudaBuffers(std::shared_ptr<CudaDevices> devices) : devices_(std::move(devices)) {}

  // Host memory, not cleared, that stands for `size` bytes at a device's address. `keeper` is what
  // holds these, if anything does. Throws what CudaDevices::open() throws.
  std::span<std::byte> add(net::cuda::Address address, uint64_t size,
                           std::shared_ptr<const void> keeper);
  bool empty() const { return stands_.empty(); }

  // All bytes come from the devices. Like send(), it throws TransferFailure: kDevice, kTimeout;
  // then copies that had begun may go on, in memory that stays until they are over.
  void fetch(net::Clock::time_point until);
  // What of this host memory stands for a device's goes there.
  struct Piece {
    const std::byte* host;
    uint64_t bytes;
  };
  void send(std::span<const Piece> pieces, net::Clock::time_point until);

 private:
  struct Stand {
    std::shared_ptr<CudaMemory> device;
    std::shared_ptr<std::byte[]> host;
  };
  class Moves;

  const std::shared_ptr<CudaDevices> devices_;
  std::map<const std::byte*, Stand> stands_;  // by `host`
};

}  // namespace inlay::transfer
