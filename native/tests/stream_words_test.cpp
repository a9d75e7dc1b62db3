// The device's side of a hand-over by the stand-in driver: a whole step is given to a stream before
// any of it is done, and stream and host then take turns.
#include "../net/cuda/stream_words.h"

#include <dlfcn.h>

#include <array>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "../core/errors.h"
#include "../kernels/hand_over.h"
#include "check.h"

namespace {

using namespace inlay;
using namespace std::chrono_literals;
namespace cuda = net::cuda;
using kernels::HandOver;
using kernels::HostExperts;

constexpr int64_t kLayers = 7;
constexpr int64_t kTokens = 3;
constexpr int64_t kHidden = 40000;  // a row is copied in pieces
constexpr kernels::HandOverSizes kSizes = {kLayers, kTokens, kHidden, 1, 2};
constexpr std::size_t kRows = static_cast<std::size_t>(kTokens * kHidden);

template <typename Function>
Function find(const char* name) {
  static void* const library = dlopen("libcuda.so.1", RTLD_NOW);
  CHECK(library != nullptr);
  auto* found = reinterpret_cast<Function>(dlsym(library, name));
  CHECK(found != nullptr);
  return found;
}
const auto fail_call = find<void (*)(const char*, int, int)>("standin_fail");
const auto delay = find<void (*)(int)>("standin_delay");
const auto depth = find<int (*)()>("standin_depth");
const auto contexts = find<int (*)()>("standin_contexts");
const auto allocate = find<int (*)(cuda::Address*, std::size_t)>("cuMemAlloc_v2");
const auto put = find<int (*)(cuda::Address, const void*, std::size_t)>("cuMemcpyHtoD_v2");
const auto get = find<int (*)(void*, cuda::Address, std::size_t)>("cuMemcpyDtoH_v2");

const cuda::Driver& driver() {
  std::string problem;
  const cuda::Driver* found = cuda::start_driver(problem);
  CHECK(found != nullptr);
  return *found;
}

// Each layer turns x into 2 x + its number.
void compute(const HostExperts& p) {
  for (int64_t t = 0; t < p.x_TM.rows; ++t)
    for (int64_t m = 0; m < p.x_TM.cols; ++m)
      p.out_TM.row(t)[m] = 2 * p.x_TM.row(t)[m] + static_cast<float>(p.layer);
}

float expected(float x) {
  for (int64_t j = 0; j < kLayers; ++j) x = 2 * x + static_cast<float>(j);
  return x;
}

// A device whose rows go to the host and come back, layer by layer.
class Device {
 public:
  Device()
      : x(2 * kRows),
        out(2 * kRows, 99.0f),
        routing(2 * kTokens, 1.0f),
        ids(2 * kTokens, 0),
        words(2 * kLayers),
        hand_over(kSizes, {x.data(), ids.data(), routing.data(), out.data(), words.data()},
                  compute) {
    CHECK(driver().device_get(&device_, 1) == 0);
    CHECK(driver().retain_primary(&context_, device_) == 0);
    CHECK(driver().register_host(words.data(), words.size() * sizeof(words[0]), 0) ==
          cuda::Result(201));  // no context is current
    const cuda::Current current(driver(), context_);
    CHECK(driver().register_host(words.data(), words.size() * sizeof(words[0]), 0) == 0);
    CHECK(driver().create_stream(&stream, 0) == 0);
    CHECK(allocate(&rows_, kRows * sizeof(float)) == 0);
  }
  ~Device() {
    {
      const cuda::Current current(driver(), context_);
      CHECK(driver().synchronize_stream(stream) == 0);
      CHECK(driver().destroy_stream(stream) == 0);
      CHECK(driver().unregister_host(words.data()) == 0);
    }
    driver().release_primary(device_);
  }

  // Gives a step to the stream; returns before it is done.
  void give(const cuda::StreamWords& stream_words, float first, int64_t layers = kLayers) {
    const cuda::Current current(driver(), context_);
    const std::vector<float> rows(kRows, first);
    CHECK(driver().synchronize_stream(stream) == 0);
    CHECK(put(rows_, rows.data(), kRows * sizeof(float)) == 0);
    for (int64_t j = 0; j < layers; ++j) {
      const std::size_t slot = static_cast<std::size_t>(j % 2) * kRows;
      copy(address(x.data() + slot), rows_);
      stream_words.set(stream, static_cast<std::size_t>(2 * j));
      stream_words.wait(stream, static_cast<std::size_t>(2 * j + 1));
      copy(rows_, address(out.data() + slot));
    }
  }
  std::vector<float> take() {
    const cuda::Current current(driver(), context_);
    CHECK(driver().synchronize_stream(stream) == 0);
    std::vector<float> rows(kRows);
    CHECK(get(rows.data(), rows_, kRows * sizeof(float)) == 0);
    return rows;
  }
  std::shared_ptr<kernels::Ticket> begin(std::chrono::nanoseconds timeout = 60s) {
    const std::array<uint8_t, 2 * kLayers> on_host = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    return hand_over.begin({kTokens, on_host.data(), nullptr, nullptr, timeout});
  }

  std::vector<float> x, out, routing;
  std::vector<int32_t> ids;
  std::vector<uint32_t> words;
  HandOver hand_over;
  cuda::StreamHandle stream = nullptr;

 private:
  static cuda::Address address(const void* memory) {
    return reinterpret_cast<cuda::Address>(memory);
  }
  void copy(cuda::Address to, cuda::Address from) {
    CHECK(driver().copy(to, from, kRows * sizeof(float), stream) == 0);
  }

  cuda::DeviceNumber device_ = 0;
  cuda::Context context_ = nullptr;
  cuda::Address rows_ = 0;
};

template <typename Error, typename Call>
std::string message_of(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  CHECK(false);
  return {};
}

bool has(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

void test_turns() {
  Device device;
  const cuda::StreamWords words(driver(), 1, device.words.data(), device.words.size());
  for (const int us : {0, 300}) {
    delay(us);
    for (const float first : {1.0f, -3.0f, 0.5f}) {
      const auto ticket = device.begin();
      device.give(words, first);
      CHECK(ticket->wait(60s));
      const std::vector<float> rows = device.take();
      for (const float x : rows) CHECK(x == expected(first));
    }
  }
  delay(0);
  CHECK(depth() == 0);
}

// The host ends a step: the stream goes on to its end, with answers of no use.
void test_cancelled_step_does_not_hold_the_stream() {
  Device device;
  const cuda::StreamWords words(driver(), 1, device.words.data(), device.words.size());
  const auto ticket = device.begin();
  device.give(words, 1.0f, 3);  // never asks for the fourth layer
  device.take();
  device.hand_over.cancel();
  CHECK(has(message_of<EngineError>([&] { ticket->wait(60s); }), "cancelled before layer 3"));
  device.give(words, 1.0f);
  CHECK(device.take()[0] == 0.0f);
  const auto again = device.begin();
  device.give(words, 1.0f);
  CHECK(again->wait(60s));
  CHECK(device.take()[0] == expected(1.0f));
}

void test_refusals() {
  Device device;
  const auto make = [&](int number, const uint32_t* words) {
    const cuda::StreamWords made(driver(), number, words, 2);
  };
  const uint32_t elsewhere[2] = {};
  const int before = contexts();
  CHECK(has(message_of<ResourceError>([&] { make(0, elsewhere); }), "cuPointerGetAttribute"));
  CHECK(
      has(message_of<ResourceError>([&] { make(9, device.words.data()); }), "cuda:9: cuDeviceGet"));
  CHECK(contexts() == before);  // what failed has let go of its context
  cuda::Driver old = driver();
  old.wait_value = nullptr;
  const std::string why = message_of<ResourceError>(
      [&] { const cuda::StreamWords made(old, 1, device.words.data(), 2); });
  CHECK(has(why, "older than CUDA 11.7"));

  const cuda::StreamWords words(driver(), 1, device.words.data(), device.words.size());
  fail_call("cuStreamWriteValue32_v2", 0, 801);
  const auto set = [&] { words.set(device.stream, 0); };
  CHECK(has(message_of<EngineError>(set), "cuda:1: cuStreamWriteValue32: "));
  fail_call("cuStreamWaitValue32_v2", 0, 801);
  const auto wait = [&] { words.wait(device.stream, 1); };
  CHECK(has(message_of<EngineError>(wait), "cuStreamWaitValue32"));
  CHECK(depth() == 0);
}

}  // namespace

int main() {
  test_turns();
  test_cancelled_step_does_not_hold_the_stream();
  test_refusals();
}
