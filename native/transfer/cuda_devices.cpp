#include "cuda_devices.h"

#include "../core/status.h"

namespace inlay::transfer {

using net::cuda::Device;

std::shared_ptr<Device> CudaDevices::get(const net::cuda::Driver& driver, int number) {
  const std::lock_guard lock(mutex_);
  if (stopped_) throw TransferFailure(Status::kEngineClosed, "the transfer engine is closed");
  if (const auto found = devices_.find(number); found != devices_.end()) return found->second;
  auto device = std::make_shared<Device>(driver, number, spin_us_);
  devices_.emplace(number, device);
  return device;
}

std::shared_ptr<Device> CudaDevices::pick(const net::cuda::Uuid& uuid) const {
  const std::lock_guard lock(mutex_);
  for (const auto& [number, device] : devices_)
    if (device->uuid() == uuid) return device;
  return devices_.empty() ? nullptr : devices_.begin()->second;
}

bool CudaDevices::any() const {
  const std::lock_guard lock(mutex_);
  return !devices_.empty();
}

void CudaDevices::stop() {
  std::map<int, std::shared_ptr<Device>> devices;
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    devices = devices_;
  }
  for (const auto& [number, device] : devices) device->stop();
}

}  // namespace inlay::transfer
