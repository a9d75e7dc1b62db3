// Who is told that something is over: an event loop, by one descriptor for all it waits for.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include "../net/socket.h"

namespace inlay::transfer {

class Listener {
 public:
  virtual ~Listener() = default;
  // Called once for each key, with locks held: it must not wait, nor call what told it.
  virtual void over(uint64_t key) = 0;
};

class Completions final : public Listener {
 public:
  // Readable while there is something to take.
  int fd() const { return wake_.fd(); }
  void over(uint64_t key) override;
  std::vector<uint64_t> take();

 private:
  const net::WakeUp wake_;
  std::mutex mutex_;
  std::vector<uint64_t> over_;
};

}  // namespace inlay::transfer
