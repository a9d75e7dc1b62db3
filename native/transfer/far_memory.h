// Memory that no pointer of this process reaches, a file's or a device's, and how its bytes get to
// host memory and back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "../core/status.h"

namespace inlay::transfer {

// Runs of bytes that move between one far memory and host memory together.
class FarMove {
 public:
  // Called once, after the last byte, by a thread that may start further moves and take locks of
  // paths; perhaps inside start(). The move may be destroyed by it.
  using Done = std::function<void(Status)>;

  FarMove() = default;
  FarMove(const FarMove&) = delete;
  FarMove& operator=(const FarMove&) = delete;
  // Before start(), or after `done`.
  virtual ~FarMove() = default;

  // Inside the far memory; before start(). The host memory stays until `done`.
  virtual void add(uint64_t offset, std::byte* host, uint64_t bytes) = 0;
  // Once, with at least one byte added. Of any thread; does not wait.
  virtual void start() = 0;
  // What is not begun is left: `done` hears kCancelled if that is any of it, when the rest is over.
  // Of any thread, also while `done` is called; does not wait, and does not call `done` itself.
  virtual void cancel() = 0;
};

// A segment's (Segment::far), which keeps it.
class FarMemory {
 public:
  FarMemory() = default;
  FarMemory(const FarMemory&) = delete;
  FarMemory& operator=(const FarMemory&) = delete;
  virtual ~FarMemory() = default;

  // `write`: into the far memory. It outlives its moves.
  virtual std::unique_ptr<FarMove> move(bool write, FarMove::Done done) = 0;

  // Buffers that moves will pass through, before they do, each time: it may make them faster, and
  // may keep them as long as it lives.
  virtual void pass_through(const std::shared_ptr<std::byte>& buffers, uint64_t bytes) {
    (void)buffers;
    (void)bytes;
  }

  // What the last move that failed met, for messages.
  struct Problem {
    int system_error = 0;  // an errno
    std::string text;      // names the memory
  };
  virtual Problem problem() const { return {}; }
};

}  // namespace inlay::transfer
