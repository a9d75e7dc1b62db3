// A device's memory as far memory: an address range of this process, or of another one as it is
// mapped here.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "../net/cuda/device.h"
#include "far_memory.h"

namespace inlay::transfer {

class CudaMemory final : public FarMemory {
 public:
  // `keeper` is what holds the memory, if anything does.
  CudaMemory(std::shared_ptr<net::cuda::Device> device, net::cuda::Address address, uint64_t size,
             std::shared_ptr<const void> keeper)
      : address(address), size(size), device_(std::move(device)), keeper_(std::move(keeper)) {}

  const net::cuda::Address address;
  const uint64_t size;
  net::cuda::Device& device() const { return *device_; }

  std::unique_ptr<FarMove> move(bool write, FarMove::Done done) override;
  // What it calls host memory is memory of a device, as an address.
  std::unique_ptr<FarMove> move_between(bool write, FarMove::Done done);
  void pass_through(const std::shared_ptr<std::byte>& buffers, uint64_t bytes) override {
    device_->lock_memory(buffers, bytes);
  }
  Problem problem() const override;

 private:
  friend class CudaMove;
  Status status_of(net::cuda::Result result);

  const std::shared_ptr<net::cuda::Device> device_;
  const std::shared_ptr<const void> keeper_;
  mutable std::mutex mutex_;
  std::string problem_;
};

}  // namespace inlay::transfer
