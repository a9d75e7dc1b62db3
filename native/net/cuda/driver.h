// The CUDA driver, found when it is needed: nothing links it and no header of it is used, so a
// machine without it loses one transport and nothing else.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace inlay::net::cuda {

using Result = int;        // CUresult
using DeviceNumber = int;  // CUdevice
using Address = uint64_t;  // CUdeviceptr, or a host address: one space holds both
using Context = struct CUctx_st*;
using StreamHandle = struct CUstream_st*;
using Event = struct CUevent_st*;

struct Uuid {
  std::array<std::byte, 16> bytes{};
  bool operator==(const Uuid&) const = default;
};
struct IpcHandle {
  std::array<std::byte, 64> bytes{};
  auto operator<=>(const IpcHandle&) const = default;
};

constexpr Result kSuccess = 0;
constexpr Result kOutOfMemory = 2;
constexpr Result kNotReady = 600;

// Values of CUpointer_attribute and CUmemorytype.
constexpr int kMemoryTypeOf = 2;
constexpr int kDevicePointerOf = 3;
constexpr int kDeviceNumberOf = 9;
constexpr unsigned kDeviceMemory = 2;

// What the driver exports and we call, at the versions of CUDA 11.
struct Driver {
  Result (*init)(unsigned flags);
  Result (*driver_version)(int* version);
  Result (*error_name)(Result error, const char** name);
  Result (*error_string)(Result error, const char** text);
  Result (*device_count)(int* count);
  Result (*device_get)(DeviceNumber* device, int index);
  Result (*device_name)(char* name, int bytes, DeviceNumber device);
  Result (*device_uuid)(Uuid* uuid, DeviceNumber device);
  Result (*can_access_peer)(int* can, DeviceNumber from, DeviceNumber to);
  Result (*retain_primary)(Context* context, DeviceNumber device);
  Result (*release_primary)(DeviceNumber device);
  Result (*push_context)(Context context);
  Result (*pop_context)(Context* context);
  Result (*enable_peer_access)(Context to, unsigned flags);
  Result (*pointer_attribute)(void* value, int attribute, Address address);
  Result (*address_range)(Address* base, std::size_t* bytes, Address address);
  Result (*copy)(Address to, Address from, std::size_t bytes, StreamHandle stream);
  Result (*register_host)(void* memory, std::size_t bytes, unsigned flags);
  Result (*unregister_host)(void* memory);
  Result (*create_stream)(StreamHandle* stream, unsigned flags);
  Result (*destroy_stream)(StreamHandle stream);
  Result (*synchronize_stream)(StreamHandle stream);
  Result (*create_event)(Event* event, unsigned flags);
  Result (*destroy_event)(Event event);
  Result (*record_event)(Event event, StreamHandle stream);
  Result (*query_event)(Event event);
  Result (*get_ipc_handle)(IpcHandle* handle, Address address);
  Result (*open_ipc_handle)(Address* address, IpcHandle handle, unsigned flags);
  Result (*close_ipc_handle)(Address address);
  // Of CUDA 11.7, on all devices since; null where the library is older.
  Result (*write_value)(StreamHandle stream, Address address, uint32_t value, unsigned flags);
  Result (*wait_value)(StreamHandle stream, Address address, uint32_t value, unsigned flags);
};

// Loads the library at the first call and never unloads it. Starts nothing. Null when it is not
// there; `problem` says why.
const Driver* load_driver(std::string& problem);

// Loads it and starts CUDA (cuInit), at the first call; 0.1 s and more. From then on children that
// are forked cannot use CUDA, which the driver does not allow. Null, with the reason, when it is
// too old, has no device, or says so.
const Driver* start_driver(std::string& problem);

// Of a started driver.
int count_devices(const Driver& driver);

// "cuInit: no CUDA-capable device is detected (CUDA_ERROR_NO_DEVICE, 100)".
std::string error_text(const Driver& driver, const char* call, Result error);

// A context is this thread's current one while it lives; what was before comes back.
class Current {
 public:
  Current(const Driver& driver, Context context)
      : driver_(driver), result_(driver.push_context(context)) {}
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;
  ~Current() {
    Context context = nullptr;
    if (result_ == kSuccess) driver_.pop_context(&context);
  }
  Result result() const { return result_; }

 private:
  const Driver& driver_;
  const Result result_;
};

}  // namespace inlay::net::cuda
