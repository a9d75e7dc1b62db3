// One CUDA device as this process uses it: its primary context, which it shares with other users
// such as torch, and what it was asked to copy.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "../socket.h"
#include "driver.h"
#include "stream.h"

namespace inlay::net::cuda {

class Device;

// An allocation of another process. Closed with its last holder.
class Mapping {
 public:
  Mapping(std::shared_ptr<Device> device, Address address)
      : device_(std::move(device)), address_(address) {}
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping();

  Address address() const { return address_; }

 private:
  const std::shared_ptr<Device> device_;
  const Address address_;
};

class Device : public std::enable_shared_from_this<Device> {
 public:
  // Device `number` as the driver counts those that are visible here. Throws
  // TransferFailure(kTransportUnavailable).
  Device(const Driver& driver, int number, int spin_us);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  const int number;
  const Uuid& uuid() const { return uuid_; }
  const Driver& driver() const { return driver_; }
  const std::string& name() const { return name_; }  // "cuda:0 (NVIDIA H200)"

  // Copies into the device, out of it, and between devices: each has its own stream, since the
  // engines of a device work at the same time.
  enum class Way : uint8_t { kIn, kOut, kBetween };
  // Does not wait. Where there is no stream to be had, the copies end with kOutOfMemory, here.
  void copy(Way way, std::shared_ptr<Copies> copies);
  // What has not begun is cancelled; returns when nothing is under way.
  void stop();

  // Lets this device reach that one without a detour, where the hardware can. At each pair once.
  void approach(Device& other);
  // Locks host memory in place, which speeds up copies from and to it, and keeps it until stop();
  // nothing where the system refuses. 0.1 ms per MiB, and of the same memory again nothing.
  void lock_memory(const std::shared_ptr<std::byte>& memory, std::size_t bytes);

  // What another process needs to map the allocation that holds an address. Empty `problem`: it
  // may.
  struct Shared {
    IpcHandle handle;
    uint64_t offset = 0;  // of the address in the allocation
    std::string problem;
  };
  Shared share(Address address, uint64_t bytes);
  // Null, with the reason, when the driver refuses.
  std::shared_ptr<const Mapping> open(const IpcHandle& handle, std::string& problem);

 private:
  friend class Mapping;

  const Driver& driver_;
  const int spin_us_;
  const unsigned generation_ = fork_generation();
  DeviceNumber device_ = 0;
  Context context_ = nullptr;
  Uuid uuid_;
  std::string name_;

  std::mutex mutex_;
  bool stopped_ = false;
  std::array<std::unique_ptr<Stream>, 3> streams_;
  std::set<int> approached_;
  std::map<std::shared_ptr<std::byte>, bool> locked_;  // false: refused, or another device's
  std::map<IpcHandle, std::weak_ptr<const Mapping>> mappings_;
};

}  // namespace inlay::net::cuda
