#include "cuda_devices.h"

#include <optional>
#include <string>

#include "../core/errors.h"
#include "../core/status.h"
#include "cuda_memory.h"

namespace inlay::transfer {

namespace cuda = net::cuda;
using cuda::Device;

namespace {

// The device that an address belongs to; none when it is no device's memory.
std::optional<int> device_of(const cuda::Driver& driver, cuda::Address address) {
  unsigned kind = 0;
  int number = 0;
  if (driver.pointer_attribute(&kind, cuda::kMemoryTypeOf, address) != cuda::kSuccess ||
      kind != cuda::kDeviceMemory ||
      driver.pointer_attribute(&number, cuda::kDeviceNumberOf, address) != cuda::kSuccess)
    return {};
  return number;
}

}  // namespace

const cuda::Driver& CudaDevices::start() {
  std::string problem;
  if (const cuda::Driver* driver = cuda::start_driver(problem)) return *driver;
  throw TransferFailure(Status::kTransportUnavailable,
                        "device memory needs CUDA, which does not work here: " + problem);
}

std::shared_ptr<CudaMemory> CudaDevices::open(cuda::Address address, uint64_t size,
                                              std::shared_ptr<const void> keeper) {
  const cuda::Driver& driver = start();
  const auto first = device_of(driver, address);
  if (!first || size == 0 || address + size < address ||
      device_of(driver, address + size - 1) != first)
    throw ArgumentError("buffer: " + std::to_string(size) + " bytes at address " +
                        std::to_string(address) +
                        " are neither all memory that this process may read nor of one device");
  return std::make_shared<CudaMemory>(get(driver, *first), address, size, std::move(keeper));
}

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
