#include "device.h"

#include <stdexcept>
#include <utility>

#include "../../core/status.h"

namespace inlay::net::cuda {

namespace {

constexpr unsigned kLazyPeerAccess = 1;  // CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
constexpr unsigned kPortable = 1;        // CU_MEMHOSTREGISTER_PORTABLE: locked for all devices

}  // namespace

Mapping::~Mapping() {
  if (device_->generation_ != fork_generation()) return;
  const Current current(device_->driver_, device_->context_);
  if (current.result() == kSuccess) device_->driver_.close_ipc_handle(address_);
}

Device::Device(const Driver& driver, int number, int spin_us)
    : number(number), driver_(driver), spin_us_(spin_us) {
  const auto check = [&](const char* call, Result result) {
    if (result == kSuccess) return;
    throw TransferFailure(Status::kTransportUnavailable, "cuda:" + std::to_string(number) + ": " +
                                                             error_text(driver, call, result));
  };
  check("cuDeviceGet", driver.device_get(&device_, number));
  check("cuDeviceGetUuid", driver.device_uuid(&uuid_, device_));
  std::array<char, 128> text{};
  check("cuDeviceGetName", driver.device_name(text.data(), text.size() - 1, device_));
  name_ = "cuda:" + std::to_string(number) + " (" + text.data() + ")";
  check("cuDevicePrimaryCtxRetain", driver.retain_primary(&context_, device_));
}

Device::~Device() {
  if (generation_ != fork_generation()) {
    // Its threads and its context are the parent's.
    for (auto& stream : streams_) (void)stream.release();
    return;
  }
  stop();
  driver_.release_primary(device_);
}

void Device::copy(Way way, std::shared_ptr<Copies> copies) {
  Stream* stream = nullptr;
  Result refused = Copies::kCancelled;
  {
    const std::lock_guard lock(mutex_);
    auto& held = streams_[static_cast<std::size_t>(way)];
    try {
      if (held == nullptr && !stopped_)
        held = std::make_unique<Stream>(driver_, context_, spin_us_);
    } catch (const std::runtime_error&) {
      refused = kOutOfMemory;  // no thread, or no stream; tried again by the next copy
    }
    stream = held.get();
  }
  if (stream == nullptr)
    Stream::end(*copies, refused);
  else
    stream->post(std::move(copies));
}

void Device::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  for (const auto& stream : streams_)
    if (stream != nullptr) stream->stop();
  std::map<std::shared_ptr<std::byte>, bool> locked;
  {
    const std::lock_guard lock(mutex_);
    locked.swap(locked_);
  }
  const Current current(driver_, context_);
  for (const auto& [memory, is_ours] : locked)
    if (is_ours && current.result() == kSuccess) driver_.unregister_host(memory.get());
}

void Device::approach(Device& other) {
  const std::lock_guard lock(mutex_);
  if (&other == this || !approached_.insert(other.number).second) return;
  int can = 0;
  if (driver_.can_access_peer(&can, device_, other.device_) != kSuccess || can == 0) return;
  const Current current(driver_, context_);
  // A refusal, or that somebody did it before us, makes no difference: the driver finds its way.
  if (current.result() == kSuccess) driver_.enable_peer_access(other.context_, 0);
}

void Device::lock_memory(const std::shared_ptr<std::byte>& memory, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  if (stopped_) return;
  const auto [found, is_new] = locked_.try_emplace(memory, false);
  if (!is_new) return;
  const Current current(driver_, context_);
  found->second = current.result() == kSuccess &&
                  driver_.register_host(memory.get(), bytes, kPortable) == kSuccess;
}

Device::Shared Device::share(Address address, uint64_t bytes) {
  Shared shared;
  const Current current(driver_, context_);
  Address base = 0;
  std::size_t size = 0;
  const char* call = "cuCtxPushCurrent";
  Result result = current.result();
  if (result == kSuccess) {
    call = "cuMemGetAddressRange";
    result = driver_.address_range(&base, &size, address);
  }
  if (result == kSuccess &&
      (address < base || address - base > size || bytes > size - (address - base))) {
    shared.problem = "it is no single allocation of cudaMalloc (of torch: expandable_segments)";
    return shared;
  }
  if (result == kSuccess) {
    call = "cuIpcGetMemHandle";
    result = driver_.get_ipc_handle(&shared.handle, base);
  }
  if (result != kSuccess)
    shared.problem = error_text(driver_, call, result);
  else
    shared.offset = address - base;
  return shared;
}

std::shared_ptr<const Mapping> Device::open(const IpcHandle& handle, std::string& problem) {
  const std::lock_guard lock(mutex_);
  auto& known = mappings_[handle];
  if (auto mapping = known.lock()) return mapping;
  const Current current(driver_, context_);
  Address address = 0;
  const char* call = "cuCtxPushCurrent";
  Result result = current.result();
  if (result == kSuccess) {
    call = "cuIpcOpenMemHandle";
    result = driver_.open_ipc_handle(&address, handle, kLazyPeerAccess);
  }
  if (result != kSuccess) {
    mappings_.erase(handle);
    problem = error_text(driver_, call, result);
    return nullptr;
  }
  auto mapping = std::make_shared<const Mapping>(shared_from_this(), address);
  known = mapping;
  std::erase_if(mappings_, [](const auto& each) { return each.second.expired(); });
  return mapping;
}

}  // namespace inlay::net::cuda
