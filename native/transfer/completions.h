// Tells an event loop which batches are over: one descriptor for all of them.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include "../net/socket.h"

namespace inlay::transfer {

class Completions {
 public:
  // Readable while there is something to take.
  int fd() const { return wake_.fd(); }
  void push(uint64_t key);
  std::vector<uint64_t> take();

 private:
  const net::WakeUp wake_;
  std::mutex mutex_;
  std::vector<uint64_t> over_;
};

}  // namespace inlay::transfer
