#include "library.h"

#include <dlfcn.h>

#include <mutex>

#include "../../core/status.h"
#include "signal_actions.h"

namespace inlay::net::fabric {

namespace {

constexpr const char* kName = "libfabric.so.1";

template <typename Function>
bool find(void* handle, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(handle, name));
  return function != nullptr;
}

std::string version_text(uint32_t version) {
  return std::to_string(FI_MAJOR(version)) + "." + std::to_string(FI_MINOR(version));
}

std::string load(Library& library) {
  const SignalActions kept;
  void* handle = dlopen(kName, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* why = dlerror();
    return "libfabric cannot be loaded (" + std::string(why == nullptr ? kName : why) +
           "); install it (Debian: libfabric1)";
  }
  if (!find(handle, "fi_getinfo", library.getinfo) ||
      !find(handle, "fi_freeinfo", library.freeinfo) ||
      !find(handle, "fi_dupinfo", library.dupinfo) || !find(handle, "fi_fabric", library.fabric) ||
      !find(handle, "fi_version", library.version) ||
      !find(handle, "fi_strerror", library.strerror))
    return std::string(kName) + " lacks functions of libfabric";
  if (FI_VERSION_LT(library.version(), kApiVersion))
    return std::string(kName) + " is version " + version_text(library.version()) + "; " +
           version_text(kApiVersion) + " is needed";
  return {};
}

}  // namespace

const Library* load_library(std::string& problem) {
  static std::once_flag once;
  static Library library{};
  static std::string& why = *new std::string;
  std::call_once(once, [] { why = load(library); });
  problem = why;
  return why.empty() ? &library : nullptr;
}

std::string error_text(const Library& library, const char* call, int64_t error) {
  return std::string(call) + ": " + library.strerror(static_cast<int>(-error)) + " (" +
         std::to_string(error) + ")";
}

void fail(const Library& library, const char* call, int64_t error) {
  throw TransferFailure(Status::kTransportUnavailable,
                        "fabric: " + error_text(library, call, error));
}

}  // namespace inlay::net::fabric
