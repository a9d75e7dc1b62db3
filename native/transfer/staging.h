// Between far memory and a connection: host memory that bytes pass through, and their way from or
// to the far memory.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "far_memory.h"
#include "segment.h"

namespace inlay::transfer {

// A fixed number of buffers, whose memory is taken at first use. Lives as long as any of them.
class StagingPool {
 public:
  // As large as the largest slice, so that a slice is staged as a whole; as many as keep a disk and
  // a connection busy at once.
  static constexpr uint64_t kBufferBytes = uint64_t{2} << 20;
  static constexpr std::size_t kBuffers = 16;

  // `freed` is called by whoever gives a buffer back after take() gave none; once for each time.
  // Throws ResourceError.
  explicit StagingPool(std::function<void()> freed);

  // Aligned for direct moves; goes back with the last reference. Null: all are in use.
  std::shared_ptr<std::byte> take();
  // Of a pool without any: one more, whose memory the system gets back.
  static std::shared_ptr<std::byte> take_another();
  // Whether take() gives one; if not, `freed` will be called.
  bool has_free();

 private:
  struct State;
  std::shared_ptr<State> state_;
};

// What a peer reads from far memory, or writes to it, on its way through a buffer.
class StagedMove {
 public:
  // Ranges of the segment lie one after the other in the buffer.
  StagedMove(bool write, std::shared_ptr<SegmentUse> use, std::shared_ptr<std::byte> buffer,
             std::span<const net::WireRange> ranges)
      : write(write),
        buffer(std::move(buffer)),
        use_(std::move(use)),
        segment_(&use_->segment()),
        ranges_(ranges.begin(), ranges.end()) {}

  // Once. `done` is called as FarMove says, when the segment is free.
  void start(std::function<void(Status)> done);
  bool is_started() const { return move_ != nullptr; }
  // What is not begun is left; `done` hears kSegmentClosed then.
  void cancel();
  bool is_over() const { return over_.load(); }
  bool is_of(const Segment& segment) const { return segment_ == &segment; }

  const bool write;
  const std::shared_ptr<std::byte> buffer;

 private:
  std::shared_ptr<SegmentUse> use_;
  const Segment* const segment_;  // to compare
  const std::vector<net::WireRange> ranges_;
  std::function<void(Status)> done_;
  std::unique_ptr<FarMove> move_;
  std::atomic<bool> over_{false};
};

}  // namespace inlay::transfer
