// Transport cuda: memory of CUDA devices, within this process and in others of this host
// (cuda_path.h). Elsewhere peers reach it by staging (far_memory.h).
//
// CUDA is started by the first registration of device memory, or when the transport is asked for by
// name: processes that only move host memory may fork and use it later.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "cuda_devices.h"
#include "cuda_memory.h"
#include "transport.h"

namespace inlay::transfer {

class CudaServer;
class Door;

class CudaTransport final : public Transport {
 public:
  static constexpr std::string_view kName = "cuda";

  explicit CudaTransport(const Site& site);
  ~CudaTransport() override;

  std::string_view name() const override { return kName; }
  std::string problem() const override;

  // At the first call 0.1 s and more. Throws TransferFailure(kTransportUnavailable).
  const net::cuda::Driver& start();
  // Memory at an address, as a segment needs it. Throws what start() throws, and ArgumentError when
  // it is no device's.
  struct Found {
    std::shared_ptr<CudaMemory> memory;
    net::Location location;
  };
  Found open(net::cuda::Address address, uint64_t size, std::shared_ptr<const void> keeper);

  // Throws TransferFailure(kSegmentOverlap).
  Bytes attach(Segment& segment) override;
  bool detach(Segment& segment, Clock::time_point until) override;
  Bytes offer() override;
  Connected connect(const std::shared_ptr<PathOwner>& peer, std::span<const std::byte> offer,
                    Clock::time_point end) override;
  Clock::time_point tick(Clock::time_point now) override;
  void close() override;

 private:
  void note(const Segment& segment, const CudaMemory& memory);

  const Site site_;
  const std::shared_ptr<CudaDevices> devices_;
  std::shared_ptr<Door> door_;          // null where there is a problem
  std::shared_ptr<CudaServer> server_;  // null where nothing can be mapped by others

  mutable std::mutex mutex_;
  std::string problem_;
  std::map<net::cuda::Address, const Segment*> attached_;
};

// What CUDA has on this machine. Starts it.
struct CudaFound {
  std::string problem;               // why it does not work, or empty
  std::vector<std::string> devices;  // "cuda:0 NVIDIA H200"
};
CudaFound find_cuda();

}  // namespace inlay::transfer
