// A stand-in for libcuda.so.1 on machines without a GPU: the calls of net/cuda/driver.h over host
// memory, with what makes devices different. Their memory is at addresses that the CPU cannot
// touch; copies happen later, on threads of their own; a call without a context fails; handles of
// memory work in other processes and not in their own.
//
//   CUDA_STANDIN_DEVICES   how many, 2 unless set        CUDA_STANDIN_INIT   what cuInit returns
//
// standin_*() steer it while a test runs.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "cuda_driver_stream.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

using Address = uint64_t;
constexpr Result kInvalidValue = 1;
constexpr Result kOutOfMemory = 2;
constexpr Result kNotInitialized = 3;
constexpr Result kInvalidDevice = 101;
constexpr Result kInvalidContext = 201;
constexpr Result kNotReady = 600;
constexpr Result kNotRegistered = 713;

struct Allocation {
  std::size_t size;
  std::byte* bytes;  // where the CPU finds them
  int device;
  int file;
  bool shareable;
  bool imported;
  int holders = 1;  // of an imported one
  ino_t number = 0;
};

struct Handle {
  int pid;
  int file;
  std::size_t size;
  int device;
  ino_t number;
};
static_assert(sizeof(Handle) <= 64);

// Never destroyed: threads use them to the end.
std::mutex& mutex = *new std::mutex;
std::map<Address, Allocation>& allocations = *new std::map<Address, Allocation>;
std::map<void*, std::size_t>& registered = *new std::map<void*, std::size_t>;
std::map<std::string, std::pair<int, Result>>& failures =
    *new std::map<std::string, std::pair<int, Result>>;
std::atomic<pid_t> initialized{0};
std::atomic<int> contexts{0};

struct Context {
  int device;
  int users = 0;
};
Context& context_of(int device) {
  static auto* const all = new std::vector<Context>{{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}};
  return (*all)[static_cast<std::size_t>(device)];
}
thread_local std::vector<Context*> current;

int number_of_devices() {
  const char* wanted = getenv("CUDA_STANDIN_DEVICES");
  return wanted == nullptr ? 2 : atoi(wanted);
}

// What is wrong with a call before it is looked at.
Result refusal(const char* call, bool needs_context = true) {
  const std::lock_guard lock(mutex);
  if (initialized.load() != getpid()) return kNotInitialized;
  if (fault.load() != kSuccess) return fault.load();
  const auto found = failures.find(call);
  if (found != failures.end() && found->second.first-- == 0) {
    const Result result = found->second.second;
    failures.erase(found);
    return result;
  }
  return needs_context && current.empty() ? kInvalidContext : kSuccess;
}

// With the lock held. Null: it reaches beyond device memory, or is no device's.
Allocation* find(Address address, std::size_t bytes, Address& base) {
  auto found = allocations.upper_bound(address);
  if (found == allocations.begin()) return nullptr;
  --found;
  base = found->first;
  if (address - base >= found->second.size || bytes > found->second.size - (address - base))
    return nullptr;
  return &found->second;
}

// With the lock held.
bool is_registered(Address address) {
  auto found = registered.upper_bound(reinterpret_cast<void*>(address));
  if (found == registered.begin()) return false;
  --found;
  return address - reinterpret_cast<Address>(found->first) < found->second;
}

// What the CPU touches for an address of the common space; null for what is neither.
std::byte* bytes_at(Address address, std::size_t bytes, bool& device) {
  const std::lock_guard lock(mutex);
  Address base = 0;
  if (Allocation* found = find(address, bytes, base)) {
    device = true;
    return found->bytes + (address - base);
  }
  if (find(address, 1, base) != nullptr) return nullptr;
  return reinterpret_cast<std::byte*>(address);
}

// An address that nothing can touch.
Address reserve(std::size_t size) {
  void* at = mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return at == MAP_FAILED ? 0 : reinterpret_cast<Address>(at);
}

bool map_bytes(Allocation& allocation) {
  void* at = mmap(nullptr, allocation.size, PROT_READ | PROT_WRITE, MAP_SHARED, allocation.file, 0);
  if (at == MAP_FAILED) return false;
  allocation.bytes = static_cast<std::byte*>(at);
  return true;
}

void wait_for_copies() {
  while (under_way.load() > 0) usleep(50);
}

Result allocate(Address* address, std::size_t size, bool shareable) {
  if (size == 0) return kInvalidValue;
  if (const Result result = refusal("cuMemAlloc_v2"); result != kSuccess) return result;
  Allocation made{};
  made.size = size;
  made.device = current.back()->device;
  made.shareable = shareable;
  made.file = memfd_create("cuda-standin", MFD_CLOEXEC);
  struct stat about{};
  if (made.file < 0 || ftruncate(made.file, static_cast<off_t>(size)) != 0 ||
      fstat(made.file, &about) != 0 || !map_bytes(made) || (*address = reserve(size)) == 0)
    return kOutOfMemory;
  made.number = about.st_ino;
  const std::lock_guard lock(mutex);
  allocations[*address] = made;
  return kSuccess;
}

}  // namespace

// The call after `calls` more of that name returns `result`, once.
EXPORT void standin_fail(const char* call, int calls, int result) {
  const std::lock_guard lock(mutex);
  failures[call] = {calls, result};
}
// The device faults at the end of the copy after `number` others; from then on all calls fail.
EXPORT void standin_fault_after(int number) { fault_after.store(copies.load() + number + 1); }
// Each 64 KiB of a copy wait for up to so long.
EXPORT void standin_delay(int us) { delay_us.store(us); }
// No copy goes on while it is held.
EXPORT void standin_hold(int on) { held.store(on != 0); }
EXPORT int standin_under_way() { return under_way.load(); }
// How many contexts are current on this thread, and how many are retained.
EXPORT int standin_depth() { return static_cast<int>(current.size()); }
EXPORT int standin_contexts() { return contexts.load(); }
EXPORT int standin_registered() {
  const std::lock_guard lock(mutex);
  return static_cast<int>(registered.size());
}
// Allocations of other processes that are mapped here.
EXPORT int standin_imports() {
  const std::lock_guard lock(mutex);
  int count = 0;
  for (const auto& [address, each] : allocations) count += each.imported;
  return count;
}
// Memory as cuMemMap gives it, which has no handle.
EXPORT Result standin_allocate_mapped(Address* address, std::size_t size) {
  return allocate(address, size, false);
}

EXPORT Result cuInit(unsigned) {
  if (const char* wanted = getenv("CUDA_STANDIN_INIT"); wanted != nullptr && atoi(wanted) != 0)
    return atoi(wanted);
  pid_t none = 0;
  if (!initialized.compare_exchange_strong(none, getpid()) && none != getpid())
    return kNotInitialized;
  return kSuccess;
}
EXPORT Result cuDriverGetVersion(int* version) {
  *version = 12040;
  return kSuccess;
}
EXPORT Result cuGetErrorName(Result error, const char** name) {
  static thread_local char text[32];
  std::snprintf(text, sizeof(text), "CUDA_ERROR_%d", error);
  *name = text;
  return kSuccess;
}
EXPORT Result cuGetErrorString(Result error, const char** text) {
  *text = error == kIllegalAddress ? "an illegal memory access was encountered"
          : error == 100           ? "no CUDA-capable device is detected"
                                   : "stand-in error";
  return kSuccess;
}
EXPORT Result cuDeviceGetCount(int* count) {
  *count = number_of_devices();
  return refusal("cuDeviceGetCount", false);
}
EXPORT Result cuDeviceGet(int* device, int index) {
  if (index < 0 || index >= number_of_devices()) return kInvalidDevice;
  *device = index;
  return refusal("cuDeviceGet", false);
}
EXPORT Result cuDeviceGetName(char* name, int bytes, int device) {
  std::snprintf(name, static_cast<std::size_t>(bytes), "Stand-in %d", device);
  return refusal("cuDeviceGetName", false);
}
EXPORT Result cuDeviceGetUuid(void* uuid, int device) {
  std::memset(uuid, 0x40 + device, 16);
  return refusal("cuDeviceGetUuid", false);
}
EXPORT Result cuDeviceCanAccessPeer(int* can, int from, int to) {
  *can = from != to;
  return refusal("cuDeviceCanAccessPeer", false);
}
EXPORT Result cuDevicePrimaryCtxRetain(Context** context, int device) {
  if (const Result result = refusal("cuDevicePrimaryCtxRetain", false); result != kSuccess)
    return result;
  const std::lock_guard lock(mutex);
  *context = &context_of(device);
  contexts += (*context)->users++ == 0;
  return kSuccess;
}
EXPORT Result cuDevicePrimaryCtxRelease_v2(int device) {
  const std::lock_guard lock(mutex);
  contexts -= --context_of(device).users == 0;
  return kSuccess;
}
EXPORT Result cuCtxPushCurrent_v2(Context* context) {
  if (context == nullptr) return kInvalidContext;
  current.push_back(context);
  return kSuccess;
}
EXPORT Result cuCtxPopCurrent_v2(Context** context) {
  if (current.empty()) return kInvalidContext;
  *context = current.back();
  current.pop_back();
  return kSuccess;
}
EXPORT Result cuCtxEnablePeerAccess(Context*, unsigned) { return refusal("cuCtxEnablePeerAccess"); }

EXPORT Result cuPointerGetAttribute(void* value, int attribute, Address address) {
  if (const Result result = refusal("cuPointerGetAttribute", false); result != kSuccess)
    return result;
  const std::lock_guard lock(mutex);
  Address base = 0;
  if (attribute == 3) {
    if (current.empty()) return kInvalidContext;
    if (!is_registered(address)) return kInvalidValue;
    std::memcpy(value, &address, sizeof(address));
    return kSuccess;
  }
  const Allocation* found = find(address, 1, base);
  if (found == nullptr) return kInvalidValue;
  if (attribute == 2) {
    const unsigned device_memory = 2;
    std::memcpy(value, &device_memory, sizeof(device_memory));
  } else if (attribute == 9) {
    std::memcpy(value, &found->device, sizeof(found->device));
  } else {
    return kInvalidValue;
  }
  return kSuccess;
}
EXPORT Result cuMemGetAddressRange_v2(Address* base, std::size_t* size, Address address) {
  if (const Result result = refusal("cuMemGetAddressRange_v2"); result != kSuccess) return result;
  const std::lock_guard lock(mutex);
  const Allocation* found = find(address, 1, *base);
  if (found == nullptr) return kInvalidValue;
  *size = found->size;
  return kSuccess;
}
EXPORT Result cuMemAlloc_v2(Address* address, std::size_t size) {
  return allocate(address, size, true);
}
EXPORT Result cuMemFree_v2(Address address) {
  if (const Result result = refusal("cuMemFree_v2"); result != kSuccess) return result;
  wait_for_copies();
  const std::lock_guard lock(mutex);
  const auto found = allocations.find(address);
  if (found == allocations.end()) return kInvalidValue;
  munmap(found->second.bytes, found->second.size);
  close(found->second.file);
  allocations.erase(found);  // its address stays reserved
  return kSuccess;
}
EXPORT Result cuMemcpyAsync(Address to, Address from, std::size_t bytes, Stream* stream) {
  if (const Result result = refusal("cuMemcpyAsync"); result != kSuccess) return result;
  bool device = false;
  std::byte* target = bytes_at(to, bytes, device);
  const std::byte* source = bytes_at(from, bytes, device);
  if (stream == nullptr || target == nullptr || source == nullptr || !device) return kInvalidValue;
  stream->post({target, source, bytes});
  return kSuccess;
}
EXPORT Result cuMemcpyHtoD_v2(Address to, const void* from, std::size_t bytes) {
  bool device = false;
  std::byte* target = bytes_at(to, bytes, device);
  if (current.empty()) return kInvalidContext;
  if (target == nullptr || !device) return kInvalidValue;
  std::memcpy(target, from, bytes);
  return kSuccess;
}
EXPORT Result cuMemcpyDtoH_v2(void* to, Address from, std::size_t bytes) {
  bool device = false;
  const std::byte* source = bytes_at(from, bytes, device);
  if (current.empty()) return kInvalidContext;
  if (source == nullptr || !device) return kInvalidValue;
  std::memcpy(to, source, bytes);
  return kSuccess;
}
EXPORT Result cuMemHostRegister_v2(void* memory, std::size_t bytes, unsigned) {
  if (const Result result = refusal("cuMemHostRegister_v2"); result != kSuccess) return result;
  const std::lock_guard lock(mutex);
  return registered.emplace(memory, bytes).second ? kSuccess : kInvalidValue;
}
EXPORT Result cuMemHostUnregister(void* memory) {
  if (const Result result = refusal("cuMemHostUnregister"); result != kSuccess) return result;
  const std::lock_guard lock(mutex);
  return registered.erase(memory) == 1 ? kSuccess : kNotRegistered;
}

EXPORT Result cuStreamCreate(Stream** stream, unsigned) {
  if (const Result result = refusal("cuStreamCreate"); result != kSuccess) return result;
  *stream = new Stream;
  return kSuccess;
}
EXPORT Result cuStreamDestroy_v2(Stream* stream) {
  delete stream;
  return kSuccess;
}
EXPORT Result cuStreamSynchronize(Stream* stream) {
  stream->wait();
  return refusal("cuStreamSynchronize");
}
Result post_word(const char* call, Stream* stream, Address address, uint32_t value, bool waits) {
  if (const Result result = refusal(call); result != kSuccess) return result;
  {
    const std::lock_guard lock(mutex);
    if (stream == nullptr || address % 4 != 0 || !is_registered(address)) return kInvalidValue;
  }
  Stream::Work work;
  work.word = reinterpret_cast<uint32_t*>(address);
  work.value = value;
  work.waits = waits;
  stream->post(work);
  return kSuccess;
}
EXPORT Result cuStreamWriteValue32_v2(Stream* stream, Address address, uint32_t value,
                                      unsigned flags) {
  if (flags != 0) return kInvalidValue;
  return post_word("cuStreamWriteValue32_v2", stream, address, value, false);
}
EXPORT Result cuStreamWaitValue32_v2(Stream* stream, Address address, uint32_t value,
                                     unsigned flags) {
  if (flags != 0) return kInvalidValue;  // one that is not "at least"
  return post_word("cuStreamWaitValue32_v2", stream, address, value, true);
}
EXPORT Result cuEventCreate(Event** event, unsigned) {
  if (const Result result = refusal("cuEventCreate"); result != kSuccess) return result;
  *event = new Event;
  return kSuccess;
}
EXPORT Result cuEventDestroy_v2(Event* event) {
  delete event;
  return kSuccess;
}
EXPORT Result cuEventRecord(Event* event, Stream* stream) {
  if (const Result result = refusal("cuEventRecord"); result != kSuccess) return result;
  stream->post({nullptr, nullptr, 0, event, ++event->recorded});
  return kSuccess;
}
EXPORT Result cuEventQuery(Event* event) {
  if (const Result result = refusal("cuEventQuery"); result != kSuccess) return result;
  return event->reached.load() == event->recorded.load() ? kSuccess : kNotReady;
}

struct RawHandle {
  char bytes[64];
};
EXPORT Result cuIpcGetMemHandle(RawHandle* handle, Address address) {
  if (const Result result = refusal("cuIpcGetMemHandle"); result != kSuccess) return result;
  const std::lock_guard lock(mutex);
  Address base = 0;
  const Allocation* found = find(address, 1, base);
  if (found == nullptr || !found->shareable || found->imported) return kInvalidValue;
  const Handle made{getpid(), found->file, found->size, found->device, found->number};
  std::memset(handle, 0, sizeof(*handle));
  std::memcpy(handle, &made, sizeof(made));
  return kSuccess;
}
EXPORT Result cuIpcOpenMemHandle_v2(Address* address, RawHandle raw, unsigned) {
  if (const Result result = refusal("cuIpcOpenMemHandle_v2"); result != kSuccess) return result;
  Handle handle;
  std::memcpy(&handle, &raw, sizeof(handle));
  if (handle.pid == getpid()) return kInvalidContext;
  const std::lock_guard lock(mutex);
  for (auto& [base, each] : allocations)
    if (each.imported && each.number == handle.number) {
      ++each.holders;
      *address = base;
      return kSuccess;
    }
  Allocation made{};
  const std::string path =
      "/proc/" + std::to_string(handle.pid) + "/fd/" + std::to_string(handle.file);
  made.file = open(path.c_str(), O_RDWR | O_CLOEXEC);
  made.size = handle.size;
  made.device = handle.device;
  made.imported = true;
  made.number = handle.number;
  struct stat about{};
  if (made.file < 0 || fstat(made.file, &about) != 0 || about.st_ino != handle.number)
    return kInvalidValue;
  if (!map_bytes(made) || (*address = reserve(made.size)) == 0) return kOutOfMemory;
  allocations[*address] = made;
  return kSuccess;
}
EXPORT Result cuIpcCloseMemHandle(Address address) {
  if (const Result result = refusal("cuIpcCloseMemHandle"); result != kSuccess) return result;
  wait_for_copies();
  const std::lock_guard lock(mutex);
  const auto found = allocations.find(address);
  if (found == allocations.end() || !found->second.imported) return kInvalidValue;
  if (--found->second.holders > 0) return kSuccess;
  munmap(found->second.bytes, found->second.size);
  close(found->second.file);
  munmap(reinterpret_cast<void*>(address), found->second.size);
  allocations.erase(found);
  return kSuccess;
}
