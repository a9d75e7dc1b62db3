// Words of page-locked host memory which a device's stream sets, and for which it waits, in the
// order of its work: so a device and a thread of the host take turns without the driver's threads,
// and without one of ours that waits for the device. Both are recorded where a stream is captured
// into a graph.
#pragma once

#include <cstddef>
#include <cstdint>

#include "driver.h"

namespace inlay::net::cuda {

class StreamWords {
 public:
  // Device `number` as the driver counts those that are visible here. `words` are page-locked and
  // outlive this object. Throws ResourceError where the driver, the device or the memory is not fit
  // for it.
  StreamWords(const Driver& driver, int number, const uint32_t* words, std::size_t count);
  ~StreamWords();
  StreamWords(const StreamWords&) = delete;
  StreamWords& operator=(const StreamWords&) = delete;

  // Sets a word to 1 once all that was given to the stream before is done; what that wrote to the
  // host's memory is seen there first: before such a write the driver puts a fence for the whole
  // system. Of any thread, as wait(); neither waits for the device. Throw EngineError.
  void set(StreamHandle stream, std::size_t index) const;
  // What is given to the stream from here on begins when the word is at least 1, as a signed
  // number.
  void wait(StreamHandle stream, std::size_t index) const;

  std::size_t count() const { return count_; }

 private:
  using Operation = Result (*)(StreamHandle stream, Address address, uint32_t value,
                               unsigned flags);
  void give(const char* call, Operation operation, StreamHandle stream, std::size_t index) const;

  const Driver& driver_;
  const int number_;
  const std::size_t count_;
  const unsigned generation_;
  DeviceNumber device_ = 0;
  Context context_ = nullptr;
  Address words_ = 0;  // as the device finds them
};

}  // namespace inlay::net::cuda
