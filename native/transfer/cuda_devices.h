// The devices that an engine, or another user of device memory, uses: each from its first use to
// the user's end.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "../net/cuda/device.h"

namespace inlay::transfer {

class CudaMemory;

class CudaDevices {
 public:
  explicit CudaDevices(int spin_us) : spin_us_(spin_us) {}

  // Starts CUDA; at the first call of a process 0.1 s and more. Throws
  // TransferFailure(kTransportUnavailable).
  static const net::cuda::Driver& start();
  // Memory at an address, which `keeper` holds, if anything does. Throws ArgumentError when it is
  // no device's, or of several, and what start() and get() throw.
  std::shared_ptr<CudaMemory> open(net::cuda::Address address, uint64_t size,
                                   std::shared_ptr<const void> keeper);

  // Throws TransferFailure: kEngineClosed, kTransportUnavailable.
  std::shared_ptr<net::cuda::Device> get(const net::cuda::Driver& driver, int number);
  // One in use: that of this identity, if it is among them. Null: none is.
  std::shared_ptr<net::cuda::Device> pick(const net::cuda::Uuid& uuid) const;
  bool any() const;
  // Of all devices: what has not begun is cancelled; returns when nothing is under way.
  void stop();

 private:
  const int spin_us_;
  mutable std::mutex mutex_;
  bool stopped_ = false;
  std::map<int, std::shared_ptr<net::cuda::Device>> devices_;
};

}  // namespace inlay::transfer
