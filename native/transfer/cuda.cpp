#include "cuda.h"

#include <array>

#include "../core/errors.h"
#include "far_path.h"

namespace inlay::transfer {

namespace cuda = net::cuda;

namespace {

// Over PCI Express 4. What matters is that no other way to a device of this engine is faster.
constexpr Reach kReach{20e9, 30e-6};

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

CudaTransport::CudaTransport(const Site& site) : site_(site) {
  if (site.by_name)
    (void)cuda::start_driver(problem_);
  else
    (void)cuda::load_driver(problem_);
}

CudaTransport::~CudaTransport() { close(); }

std::string CudaTransport::problem() const {
  const std::lock_guard lock(mutex_);
  return problem_;
}

std::shared_ptr<cuda::Device> CudaTransport::device(const cuda::Driver& driver, int number) {
  const std::lock_guard lock(mutex_);
  if (closed_) throw TransferFailure(Status::kEngineClosed, "the transfer engine is closed");
  auto& held = devices_[number];
  if (held == nullptr) held = std::make_shared<cuda::Device>(driver, number, site_.spin_us);
  return held;
}

const cuda::Driver& CudaTransport::start() {
  std::string problem;
  const cuda::Driver* driver = cuda::start_driver(problem);
  if (driver != nullptr) return *driver;
  {
    const std::lock_guard lock(mutex_);
    problem_ = problem;
  }
  throw TransferFailure(Status::kTransportUnavailable,
                        "device memory needs CUDA, which does not work here: " + problem);
}

CudaTransport::Found CudaTransport::open(cuda::Address address, uint64_t size,
                                         std::shared_ptr<const void> keeper) {
  const cuda::Driver& driver = start();
  const auto first = device_of(driver, address);
  if (!first || size == 0 || address + size < address ||
      device_of(driver, address + size - 1) != first)
    throw ArgumentError("buffer: " + std::to_string(size) + " bytes at address " +
                        std::to_string(address) +
                        " are neither all memory that this process may read nor of one device");
  auto memory =
      std::make_shared<CudaMemory>(device(driver, *first), address, size, std::move(keeper));
  return {std::move(memory), {net::Place::kDevice, static_cast<uint16_t>(*first)}};
}

Bytes CudaTransport::attach(Segment& segment) {
  const auto* memory = dynamic_cast<const CudaMemory*>(segment.far);
  if (memory == nullptr) return {};
  const std::lock_guard lock(mutex_);
  const auto after = attached_.lower_bound(memory->address);
  const auto overlaps = [&](const Segment& other) {
    const auto& there = *dynamic_cast<const CudaMemory*>(other.far);
    if (there.address >= memory->address + memory->size ||
        memory->address >= there.address + there.size)
      return;
    throw TransferFailure(Status::kSegmentOverlap,
                          "segment '" + segment.name + "' would overlap the open segment '" +
                              other.name + "': deregister that one, or use a part of it",
                          segment.name);
  };
  if (after != attached_.end()) overlaps(*after->second);
  if (after != attached_.begin()) overlaps(*std::prev(after)->second);
  attached_[memory->address] = &segment;
  return {};
}

bool CudaTransport::detach(Segment& segment, Clock::time_point) {
  const std::lock_guard lock(mutex_);
  std::erase_if(attached_, [&](const auto& each) { return each.second == &segment; });
  return true;  // moves are users of the segment, which its owner waits for
}

Transport::Connected CudaTransport::connect(const std::shared_ptr<PathOwner>& peer,
                                            std::span<const std::byte>, Clock::time_point) {
  if (peer->engine_id() != site_.engine) return {{}, "its devices are its own"};
  return {{std::make_shared<FarPath>(
              peer, site_.segments,
              FarPath::Made{"cuda", "cuda, this process", net::Place::kDevice, kReach})},
          {}};
}

void CudaTransport::close() {
  std::map<int, std::shared_ptr<cuda::Device>> devices;
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    devices = devices_;
  }
  for (const auto& [number, device] : devices) device->stop();
}

CudaFound find_cuda() {
  CudaFound found;
  const cuda::Driver* driver = cuda::start_driver(found.problem);
  if (driver == nullptr) return found;
  const int count = cuda::count_devices(*driver);
  for (int i = 0; i < count; ++i) {
    cuda::DeviceNumber device = 0;
    std::array<char, 128> name{};
    if (driver->device_get(&device, i) != cuda::kSuccess ||
        driver->device_name(name.data(), name.size() - 1, device) != cuda::kSuccess)
      continue;
    found.devices.push_back("cuda:" + std::to_string(i) + " " + name.data());
  }
  return found;
}

}  // namespace inlay::transfer
