#include "stream_words.h"

#include <string>

#include "../../core/errors.h"
#include "../socket.h"

namespace inlay::net::cuda {

namespace {

constexpr unsigned kAtLeast = 0;  // CU_STREAM_WAIT_VALUE_GEQ, and CU_STREAM_WRITE_VALUE_DEFAULT
constexpr uint32_t kSet = 1;

std::string named(int number, const std::string& text) {
  return "cuda:" + std::to_string(number) + ": " + text;
}

}  // namespace

StreamWords::StreamWords(const Driver& driver, int number, const uint32_t* words, std::size_t count)
    : driver_(driver), number_(number), count_(count), generation_(fork_generation()) {
  const auto check = [&](const char* call, Result result) {
    if (result != kSuccess) throw ResourceError(named(number, error_text(driver, call, result)));
  };
  if (driver.write_value == nullptr || driver.wait_value == nullptr)
    throw ResourceError(named(number,
                              "the NVIDIA driver is older than CUDA 11.7, whose streams set words "
                              "and wait for them"));
  check("cuDeviceGet", driver.device_get(&device_, number));
  check("cuDevicePrimaryCtxRetain", driver.retain_primary(&context_, device_));
  try {
    const Current current(driver, context_);
    check("cuCtxPushCurrent", current.result());
    check("cuPointerGetAttribute",
          driver.pointer_attribute(&words_, kDevicePointerOf, reinterpret_cast<Address>(words)));
  } catch (...) {
    driver.release_primary(device_);
    throw;
  }
}

StreamWords::~StreamWords() {
  if (generation_ == fork_generation()) driver_.release_primary(device_);
}

void StreamWords::set(StreamHandle stream, std::size_t index) const {
  give("cuStreamWriteValue32", driver_.write_value, stream, index);
}

void StreamWords::wait(StreamHandle stream, std::size_t index) const {
  give("cuStreamWaitValue32", driver_.wait_value, stream, index);
}

void StreamWords::give(const char* call, Operation operation, StreamHandle stream,
                       std::size_t index) const {
  // The handle of a device's default stream is null, and means that of the current context.
  const Current current(driver_, context_);
  Result result = current.result();
  if (result == kSuccess)
    result = operation(stream, words_ + index * sizeof(uint32_t), kSet, kAtLeast);
  if (result != kSuccess) throw EngineError(named(number_, error_text(driver_, call, result)));
}

}  // namespace inlay::net::cuda
