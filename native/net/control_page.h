// A page of shared memory in which an engine says which of its segments are open, and processes of
// the same host say which of them they touch now.
//
// A visitor writes (slot, epoch) into a cell of its own and then reads the slot's epoch; the owner
// changes the epoch and then reads all cells. Both sequentially consistent: one sees the other, so
// either the visitor turns away or the owner waits for it (Dekker).
//
// The page belongs to processes of one user, who trust each other not to scribble on it.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "process_memory.h"
#include "socket.h"

namespace inlay::net {

struct ControlLayout {
  static constexpr uint64_t kMagic = 0x3147504359414c4e;
  static constexpr std::size_t kSlots = 4096;
  static constexpr std::size_t kLines = 256;
  static constexpr std::size_t kCells = 6;

  // The cells of one process; others are not written to by it.
  struct alignas(64) Line {
    std::atomic<int32_t> pid;  // 0: free
    std::atomic<uint64_t> start_time;
    std::array<std::atomic<uint64_t>, kCells> visits;  // slot << 32 | epoch; 0: none
  };

  uint64_t magic;
  std::array<std::atomic<uint32_t>, kSlots> epochs;  // of open segments; 0: closed
  std::array<Line, kLines> lines;
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);
static_assert(sizeof(ControlLayout::Line) == 64);

// The owner's end.
class ControlPage {
 public:
  ControlPage();  // throws ResourceError
  ~ControlPage();
  ControlPage(const ControlPage&) = delete;
  ControlPage& operator=(const ControlPage&) = delete;

  const Descriptor& descriptor() const { return descriptor_; }

  // An epoch is not 0, and not used for the slot before.
  void open(uint32_t slot, uint32_t epoch);
  // No visit begins any more. Those that are under way: wait_unvisited().
  void close(uint32_t slot, uint32_t epoch);
  // Waits until nobody visits the segment, which is closed. Visits of processes that died do not
  // count. False: the time was over.
  bool wait_unvisited(uint32_t slot, uint32_t epoch, Clock::time_point until);
  // Both for all segments.
  bool close_all(Clock::time_point until);
  // Frees the lines of processes that died.
  void reap();

 private:
  bool is_visited(uint64_t visit, bool look_for_dead);
  void reap(ControlLayout::Line& line);

  Descriptor descriptor_;
  ControlLayout* layout_ = nullptr;
  // The owner alone frees the lines of others, one thread at a time: two who did might wipe the
  // visit of a third that took the line in between.
  std::mutex reaping_;
};

// A visitor's end.
class VisitedPage {
 public:
  // Maps a page by its descriptor. Null, with the reason, when it is none or is full.
  static std::unique_ptr<VisitedPage> map(const Descriptor& descriptor, std::string& problem);
  ~VisitedPage();
  VisitedPage(const VisitedPage&) = delete;
  VisitedPage& operator=(const VisitedPage&) = delete;

  // While it lives the owner does not finish closing the segment. Keep it short: 1 MiB of copy.
  class Visit {
   public:
    explicit Visit(std::atomic<uint64_t>* cell) : cell_(cell) {}
    Visit(Visit&& other) noexcept : cell_(std::exchange(other.cell_, nullptr)) {}
    Visit(const Visit&) = delete;
    Visit& operator=(const Visit&) = delete;
    ~Visit() {
      if (cell_ != nullptr) cell_->store(0, std::memory_order_release);
    }
    explicit operator bool() const { return cell_ != nullptr; }  // false: the segment is closed

   private:
    std::atomic<uint64_t>* cell_;
  };

  Visit enter(uint32_t slot, uint32_t epoch);
  bool is_open(uint32_t slot, uint32_t epoch) const;

 private:
  VisitedPage() = default;
  std::atomic<uint64_t>* take_cell(uint64_t visit);
  ControlLayout::Line* take_line();

  const unsigned generation_ = fork_generation();
  ControlLayout* layout_ = nullptr;
  std::mutex mutex_;
  static constexpr std::size_t kMaxLines = 8;
  std::atomic<std::size_t> num_lines_{0};
  std::array<ControlLayout::Line*, kMaxLines> lines_{};
};

}  // namespace inlay::net
