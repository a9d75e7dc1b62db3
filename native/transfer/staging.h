// Between far memory and a connection: host memory that bytes pass through, and their way from or
// to the far memory.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
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
  static constexpr uint64_t kBytes = kBufferBytes * kBuffers;

  // `freed` is called by whoever gives a buffer back after take() gave none; once for each time.
  // Throws ResourceError.
  explicit StagingPool(std::function<void()> freed);

  // Aligned for direct moves; goes back with the last reference. Null: all are in use.
  std::shared_ptr<std::byte> take();
  // Of a pool without any: one more, whose memory the system gets back.
  static std::shared_ptr<std::byte> take_another();
  // Whether take() gives one; if not, `freed` will be called.
  bool has_free();
  // All buffers, one after the other.
  std::shared_ptr<std::byte> memory() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

// The initiator's buffers: a segment, so that every path moves bytes from and to it. Those who
// found none get one in the order of asking.
class StagingArea {
 public:
  class User {
   public:
    // Of any thread, perhaps with the user's locks held.
    virtual void buffer_free() = 0;

   protected:
    ~User() = default;
  };

  // Throws ResourceError.
  explicit StagingArea(const std::string& name);

  const std::shared_ptr<Segment>& segment() const { return segment_; }
  std::shared_ptr<std::byte> memory() const { return pool_.memory(); }
  // Null: buffer_free() will be called, once.
  std::shared_ptr<std::byte> take(const std::weak_ptr<User>& user);
  // Who was told of a buffer and took none, or has enough, lets the next have it.
  void pass_on();

 private:
  struct Waiting {
    void tell_next();

    std::mutex mutex;
    std::deque<std::weak_ptr<User>> users;
  };

  const std::shared_ptr<Waiting> waiting_ = std::make_shared<Waiting>();
  StagingPool pool_;
  std::shared_ptr<Segment> segment_;
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
