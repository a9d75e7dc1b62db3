// The devices that an engine uses, each from its first use to the engine's end.
#pragma once

#include <map>
#include <memory>
#include <mutex>

#include "../net/cuda/device.h"

namespace inlay::transfer {

class CudaDevices {
 public:
  explicit CudaDevices(int spin_us) : spin_us_(spin_us) {}

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
