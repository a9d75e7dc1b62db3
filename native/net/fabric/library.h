// libfabric, found when it is needed: nothing links it, so a machine without it loses one transport
// and nothing else.
#pragma once

#include <rdma/fabric.h>

#include <cstdint>
#include <memory>
#include <string>

namespace inlay::net::fabric {

// What the library exports and we call; everything else goes through tables in its objects.
struct Library {
  int (*getinfo)(uint32_t version, const char* node, const char* service, uint64_t flags,
                 const fi_info* hints, fi_info** info);
  void (*freeinfo)(fi_info* info);
  fi_info* (*dupinfo)(const fi_info* info);
  int (*fabric)(fi_fabric_attr* attributes, fid_fabric** fabric, void* context);
  uint32_t (*version)();
  const char* (*strerror)(int error);
};

// The interface we are written for.
constexpr uint32_t kApiVersion = FI_VERSION(1, 14);

// Loaded at the first call and never unloaded: its providers keep threads and exit handlers. Null
// when it is not there or too old; `problem` says which.
const Library* load_library(std::string& problem);

struct InfoDeleter {
  const Library* library;
  void operator()(fi_info* info) const { library->freeinfo(info); }
};
using Info = std::unique_ptr<fi_info, InfoDeleter>;

// "fi_domain: No such device (-19)", for the negative values that calls return.
std::string error_text(const Library& library, const char* call, int64_t error);

// Throws TransferFailure with that text: kTransportUnavailable.
[[noreturn]] void fail(const Library& library, const char* call, int64_t error);
inline void require(const Library& library, const char* call, int64_t result) {
  if (result < 0) fail(library, call, result);
}

}  // namespace inlay::net::fabric
