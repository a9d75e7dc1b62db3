// Who reads which records of a segment in place: a page of shared memory beside the segment.
//
// A reader writes the record's offset into a slot of its own, then reads the record's state. The
// owner sets the state to kDead, then reads all slots. Both sequentially consistent, so one sees
// the other: either the reader turns away, or the owner leaves the bytes alone until the slot is
// empty (hazard pointers: M. Michael, IEEE TPDS 2004). Slots of dead processes are emptied by the
// owner.
//
// The page belongs to processes of one user and PID namespace, who trust each other not to scribble
// on it.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "../net/socket.h"

namespace inlay::store {

struct PinLayout {
  static constexpr uint64_t kMagic = 0x31534e49504c4e49;
  static constexpr std::size_t kBlocks = 1024;
  static constexpr std::size_t kSlots = 62;

  // The slots of one process; others do not write to them, but the owner of the page when it died.
  struct alignas(64) Block {
    std::atomic<int32_t> pid;  // 0: free
    std::atomic<uint64_t> start_time;
    std::array<std::atomic<uint64_t>, kSlots> pins;  // record's offset + 1; 0: none
  };

  uint64_t magic;
  uint64_t pid_namespace;
  std::array<Block, kBlocks> blocks;
};

// Inode of this process's PID namespace.
uint64_t this_pid_namespace();

// The owner's end.
class PinPage {
 public:
  // Makes the file. Throws ResourceError.
  explicit PinPage(const std::string& file);
  ~PinPage();
  PinPage(const PinPage&) = delete;
  PinPage& operator=(const PinPage&) = delete;

  // Of records that were all marked dead before, those that somebody reads still. `offsets` are
  // sorted.
  std::vector<uint64_t> pinned(const std::vector<uint64_t>& offsets);
  // Empties the slots of processes that died.
  void reap();

 private:
  void reap(PinLayout::Block& block);

  PinLayout* layout_ = nullptr;
  std::mutex reaping_;  // two who reap could empty the slots of a third that took the block
};

// A reader's end, one per process and segment.
class PinBoard {
 public:
  // Throws ResourceError with the reason where the file is not there, or not for this process.
  explicit PinBoard(const std::string& file);
  ~PinBoard();
  PinBoard(const PinBoard&) = delete;
  PinBoard& operator=(const PinBoard&) = delete;

  // While it lives the bytes of the record stay, provided that its state was read as kLive after
  // pin() returned.
  class Pin {
   public:
    Pin() = default;
    Pin(Pin&& other) noexcept
        : slot_(std::exchange(other.slot_, nullptr)), generation_(other.generation_) {}
    Pin& operator=(Pin&& other) noexcept {
      std::swap(slot_, other.slot_);
      std::swap(generation_, other.generation_);
      return *this;
    }
    ~Pin() { release(); }
    void release() {
      std::atomic<uint64_t>* slot = std::exchange(slot_, nullptr);
      // A forked child has a copy of this object, but the pin is its parent's.
      if (slot != nullptr && generation_ == net::fork_generation())
        slot->store(0, std::memory_order_release);
    }
    explicit operator bool() const { return slot_ != nullptr; }

   private:
    friend class PinBoard;
    explicit Pin(std::atomic<uint64_t>* slot) : slot_(slot) {}
    std::atomic<uint64_t>* slot_ = nullptr;
    unsigned generation_ = net::fork_generation();
  };

  // None: all slots of the page are taken.
  Pin pin(uint64_t offset);

 private:
  bool take_block();

  const unsigned generation_ = net::fork_generation();
  PinLayout* layout_ = nullptr;
  std::mutex taking_;
  std::atomic<std::size_t> num_blocks_{0};
  std::array<PinLayout::Block*, PinLayout::kBlocks> blocks_{};
  std::atomic<std::size_t> hint_{0};
};

}  // namespace inlay::store
