// Device memory through the C interface, by the stand-in for the CUDA driver.
#include <dlfcn.h>
#include <inlay/transfer.h>

#include <cstring>
#include <vector>

#include "check.h"

namespace {

constexpr uint64_t kBytes = 1 << 20;
const char kToken[] = "sixteen bytes are the least";

template <typename T>
T sized() {
  T value{};
  value.size = sizeof(T);
  return value;
}

template <typename Function>
Function* find(const char* name) {
  static void* const library = dlopen("libcuda.so.1", RTLD_NOW);
  CHECK(library != nullptr);
  auto* function = reinterpret_cast<Function*>(dlsym(library, name));
  CHECK(function != nullptr);
  return function;
}

inlay_status move(inlay_engine* engine, int32_t op, inlay_segment* local, inlay_remote* remote,
                  inlay_range range) {
  auto request = sized<inlay_request>();
  request.op = op;
  request.local = local;
  request.remote = remote;
  request.ranges = &range;
  request.num_ranges = 1;
  auto options = sized<inlay_submit_options>();
  inlay_batch* batch = nullptr;
  inlay_status status = inlay_submit(engine, &request, 1, &options, &batch, nullptr);
  if (status == INLAY_OK) status = inlay_batch_wait(batch, 30, nullptr);
  inlay_batch_release(batch);
  return status;
}

}  // namespace

int main() {
  auto options = sized<inlay_engine_options>();
  options.token = kToken;
  options.token_bytes = sizeof(kToken);
  inlay_engine* engine = nullptr;
  auto error = sized<inlay_error>();
  CHECK(inlay_engine_open(&options, &engine, &error) == INLAY_OK);
  uint64_t address = 0;
  void* context = nullptr;
  CHECK(find<int(unsigned)>("cuInit")(0) == 0);
  CHECK(find<int(void**, int)>("cuDevicePrimaryCtxRetain")(&context, 0) == 0);
  CHECK(find<int(void*)>("cuCtxPushCurrent_v2")(context) == 0);
  CHECK(find<int(uint64_t*, std::size_t)>("cuMemAlloc_v2")(&address, kBytes) == 0);

  inlay_segment* device = nullptr;
  const auto add = [&](uint64_t at, uint64_t bytes, const char* location, const char* name) {
    return inlay_segment_register_device(engine, at, bytes, location, name, INLAY_ACCESS_WRITE,
                                         &device, &error);
  };
  std::vector<char> host(kBytes);
  CHECK(add(0, kBytes, nullptr, "x") == INLAY_ARGUMENT);
  CHECK(add(address, 0, nullptr, "x") == INLAY_ARGUMENT);
  CHECK(add(reinterpret_cast<uint64_t>(host.data()), kBytes, nullptr, "x") == INLAY_ARGUMENT);
  CHECK(add(address, kBytes, "cuda:7", "x") == INLAY_ARGUMENT);
  CHECK(std::strstr(error.text, "cuda:0, got cuda:7") != nullptr && device == nullptr);
  CHECK(add(address, kBytes, "cuda:0", "gpu") == INLAY_OK);
  inlay_segment* const registered = device;
  CHECK(add(address + 10, 10, nullptr, "x") == INLAY_SEGMENT_OVERLAP && device == registered);
  CHECK(inlay_segment_data(device) == nullptr && inlay_segment_bytes(device) == kBytes);

  // As the far end, and then as the near one.
  inlay_segment* near = nullptr;
  inlay_peer* peer = nullptr;
  inlay_remote* gpu = nullptr;
  inlay_remote* memory = nullptr;
  CHECK(inlay_segment_allocate(engine, kBytes, "memory", INLAY_ACCESS_WRITE, &near, &error) ==
        INLAY_OK);
  CHECK(inlay_peer_connect(engine, inlay_engine_address(engine), 5, &peer, &error) == INLAY_OK);
  CHECK(inlay_peer_segment(peer, "gpu", 5, &gpu, &error) == INLAY_OK);
  CHECK(inlay_peer_segment(peer, "memory", 5, &memory, &error) == INLAY_OK);
  auto* const bytes = static_cast<unsigned char*>(inlay_segment_data(near));
  for (uint64_t i = 0; i < kBytes; ++i) bytes[i] = static_cast<unsigned char>(i * 7 + i / 256);
  CHECK(move(engine, INLAY_WRITE, near, gpu, {100, 200, kBytes - 300}) == INLAY_OK);
  CHECK(find<int(void*, uint64_t, std::size_t)>("cuMemcpyDtoH_v2")(host.data(), address, kBytes) ==
        0);
  CHECK(std::memcmp(host.data() + 200, bytes + 100, kBytes - 300) == 0);
  std::memset(bytes, 0, kBytes);
  CHECK(move(engine, INLAY_WRITE, device, memory, {200, 0, kBytes - 300}) == INLAY_OK);
  CHECK(std::memcmp(host.data() + 200, bytes, kBytes - 300) == 0);
  CHECK(bytes[kBytes - 300] == 0);

  CHECK(inlay_segment_deregister(device, 0, 5, &error) == INLAY_OK);
  CHECK(inlay_engine_close(engine, 5, &error) == INLAY_OK);
  inlay_remote_release(gpu);
  inlay_remote_release(memory);
  inlay_peer_release(peer);
  inlay_segment_release(device);
  inlay_segment_release(near);
}
