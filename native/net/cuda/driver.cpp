#include "driver.h"

#include <dlfcn.h>

#include <mutex>

#include "../socket.h"

namespace inlay::net::cuda {

namespace {

constexpr const char* kName = "libcuda.so.1";
constexpr int kLeastVersion = 11000;

struct Loaded {
  Driver driver{};
  std::string problem;
};

template <typename Function>
void find(void* handle, const char* name, Function& function, std::string& missing) {
  function = reinterpret_cast<Function>(dlsym(handle, name));
  if (function == nullptr) missing += (missing.empty() ? "" : ", ") + std::string(name);
}

std::string load(Driver& driver) {
  void* handle = dlopen(kName, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* why = dlerror();
    return "the NVIDIA driver's library cannot be loaded (" +
           std::string(why == nullptr ? kName : why) + ")";
  }
  std::string missing;
  const auto get = [&](const char* name, auto& function) { find(handle, name, function, missing); };
  get("cuInit", driver.init);
  get("cuDriverGetVersion", driver.driver_version);
  get("cuGetErrorName", driver.error_name);
  get("cuGetErrorString", driver.error_string);
  get("cuDeviceGetCount", driver.device_count);
  get("cuDeviceGet", driver.device_get);
  get("cuDeviceGetName", driver.device_name);
  get("cuDeviceGetUuid", driver.device_uuid);
  get("cuDeviceCanAccessPeer", driver.can_access_peer);
  get("cuDevicePrimaryCtxRetain", driver.retain_primary);
  get("cuDevicePrimaryCtxRelease_v2", driver.release_primary);
  get("cuCtxPushCurrent_v2", driver.push_context);
  get("cuCtxPopCurrent_v2", driver.pop_context);
  get("cuCtxEnablePeerAccess", driver.enable_peer_access);
  get("cuPointerGetAttribute", driver.pointer_attribute);
  get("cuMemGetAddressRange_v2", driver.address_range);
  get("cuMemcpyAsync", driver.copy);
  get("cuMemHostRegister_v2", driver.register_host);
  get("cuMemHostUnregister", driver.unregister_host);
  get("cuStreamCreate", driver.create_stream);
  get("cuStreamDestroy_v2", driver.destroy_stream);
  get("cuStreamSynchronize", driver.synchronize_stream);
  get("cuEventCreate", driver.create_event);
  get("cuEventDestroy_v2", driver.destroy_event);
  get("cuEventRecord", driver.record_event);
  get("cuEventQuery", driver.query_event);
  get("cuIpcGetMemHandle", driver.get_ipc_handle);
  get("cuIpcOpenMemHandle_v2", driver.open_ipc_handle);
  get("cuIpcCloseMemHandle", driver.close_ipc_handle);
  std::string absent;
  find(handle, "cuStreamWriteValue32_v2", driver.write_value, absent);
  find(handle, "cuStreamWaitValue32_v2", driver.wait_value, absent);
  if (missing.empty()) return {};
  return std::string(kName) + " is older than CUDA 11: it lacks " + missing;
}

const Loaded& loaded() {
  // Never destroyed: threads may use it at exit.
  static const Loaded& all = [&]() -> const Loaded& {
    auto* made = new Loaded;
    made->problem = load(made->driver);
    return *made;
  }();
  return all;
}

std::string start(const Driver& driver) {
  if (const Result result = driver.init(0); result != kSuccess)
    return error_text(driver, "cuInit", result);
  int version = 0;
  if (const Result result = driver.driver_version(&version); result != kSuccess)
    return error_text(driver, "cuDriverGetVersion", result);
  if (version < kLeastVersion)
    return "the NVIDIA driver is for CUDA " + std::to_string(version / 1000) + "." +
           std::to_string(version % 1000 / 10) + "; 11.0 is needed";
  int count = 0;
  if (const Result result = driver.device_count(&count); result != kSuccess)
    return error_text(driver, "cuDeviceGetCount", result);
  if (count < 1) return "there is no CUDA device";
  return {};
}

}  // namespace

const Driver* load_driver(std::string& problem) {
  problem = loaded().problem;
  return problem.empty() ? &loaded().driver : nullptr;
}

const Driver* start_driver(std::string& problem) {
  const Driver* driver = load_driver(problem);
  if (driver == nullptr) return nullptr;
  static std::mutex& mutex = *new std::mutex;
  static unsigned generation = 0;
  static bool tried = false;
  static std::string& why = *new std::string;
  const std::lock_guard lock(mutex);
  if (!tried) {
    why = start(*driver);
    generation = fork_generation();
    tried = true;
  }
  problem = why;
  if (why.empty() && generation != fork_generation())
    problem =
        "this process was forked after CUDA was started, which CUDA does not survive; "
        "fork earlier, or start it afresh (multiprocessing: 'spawn')";
  return problem.empty() ? driver : nullptr;
}

int count_devices(const Driver& driver) {
  int count = 0;
  return driver.device_count(&count) == kSuccess ? count : 0;
}

std::string error_text(const Driver& driver, const char* call, Result error) {
  const char* name = nullptr;
  const char* text = nullptr;
  if (driver.error_name(error, &name) != kSuccess || name == nullptr) name = "unknown";
  if (driver.error_string(error, &text) != kSuccess || text == nullptr) text = "unknown error";
  return std::string(call) + ": " + text + " (" + name + ", " + std::to_string(error) + ")";
}

}  // namespace inlay::net::cuda
