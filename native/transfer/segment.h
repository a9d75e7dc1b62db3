// Memory that is registered: who may do what with which bytes, and who uses them now.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "../core/status.h"
#include "../net/socket.h"
#include "../net/wire.h"

namespace inlay::transfer {

// What peers may do with a segment; kWrite includes reading.
enum class Access : uint8_t { kNone = 0, kRead = 1, kWrite = 2 };

class FarMemory;

// Of a segment whose ranges are written only by who was granted them.
class Guard {
 public:
  virtual ~Guard() = default;
  // Whether a write under this grant (0: under none) may land in this range now. Asked by several
  // threads at once, before each piece of a write; bytes wait for the answer.
  virtual bool allows(uint64_t offset, uint64_t length, uint64_t grant) const = 0;
};

class Segment {
 public:
  Segment(std::byte* base, uint64_t size, bool writable, Access access, std::string name,
          std::shared_ptr<const void> keeper, net::Location location = {})
      : base(base),
        size(size),
        writable(writable),
        access(access),
        name(std::move(name)),
        location(location),
        keeper_(std::move(keeper)) {}

  std::byte* const base;
  const uint64_t size;
  const bool writable;  // by this process
  const Access access;
  const std::string name;
  const net::Location location;
  // Of memory that can be mapped elsewhere: its file, as allocate_memory() gives it.
  std::shared_ptr<const net::Descriptor> memory;
  // Of host memory; not changed once peers can find it. Peers do not write such memory themselves:
  // its owner lands the bytes, piece by piece, and asks before each.
  std::shared_ptr<const Guard> guard;
  // Of a segment in far memory, whose base is null; its keeper is what holds it.
  FarMemory* far = nullptr;
  std::shared_ptr<struct RemoteSegment> as_remote;  // in this engine's own transfers
  // What peers need to reach it, by transport. Not changed once peers can find it.
  std::vector<net::TransportKey> keys;
  // Its place in the registry. A slot is used again under another epoch.
  uint32_t slot = 0;
  uint32_t epoch = 0;

  bool contains(uint64_t offset, uint64_t length) const {
    return length <= size && offset <= size - length;
  }

  // What peers may do by themselves.
  Access unguarded() const {
    return guard != nullptr && access == Access::kWrite ? Access::kRead : access;
  }
  // Whether a piece of a write may land. Within a GuardedPiece, so that await_pieces() sees it.
  bool allows(uint64_t offset, uint64_t length, uint64_t grant) const {
    return guard == nullptr || guard->allows(offset, length, grant);
  }
  // Waits until pieces that the guard was asked about before this call have landed; later ones it
  // is asked about again. So what a guard has stopped allowing lands no more. False: the time was
  // over. A piece is what one call copies or receives, some MiB at most.
  bool await_pieces(std::chrono::steady_clock::time_point until) const;

  // Users: batches of this process, and frames of peers that read or write it now.
  bool enter();  // false: it is closed
  void leave();
  bool is_open() const;
  // Lets no new users in; false if that was so.
  bool close();
  bool wait_unused(std::chrono::steady_clock::time_point until);
  // Lets go of what keeps the memory in place. Only after wait_unused().
  std::shared_ptr<const void> take_keeper();

 private:
  mutable std::mutex mutex_;
  std::condition_variable unused_;
  bool open_ = true;
  uint64_t users_ = 0;
  std::shared_ptr<const void> keeper_;

  friend class GuardedPiece;
  // Pieces count in turns, by the last bit of the turn they began in: who waits begins a new one,
  // and waits for those of the turn before.
  mutable std::mutex landing_mutex_;
  mutable std::condition_variable landed_;
  mutable uint64_t turn_ = 0;
  mutable bool awaiting_ = false;
  mutable std::array<uint64_t, 2> landing_{};
};

// While it lives, a piece of a write lands in a segment, unless that has no guard.
class GuardedPiece {
 public:
  explicit GuardedPiece(const Segment& segment);
  GuardedPiece(const GuardedPiece&) = delete;
  GuardedPiece& operator=(const GuardedPiece&) = delete;
  ~GuardedPiece();

 private:
  const Segment* segment_;  // null: it has none
  std::size_t turn_ = 0;
};

// Memory that this process and others can map, of which no one can cut off a part. Those who get
// the descriptor of memory that peers only read cannot map it for writing.
struct Allocation {
  std::shared_ptr<std::byte> bytes;               // zeroed, faulted in; freed with the last holder
  std::shared_ptr<const net::Descriptor> memory;  // null where the system has no such memory
};
// Throws ResourceError.
Allocation allocate_memory(uint64_t size, Access access);

// A user for as long as it lives.
class SegmentUse {
 public:
  explicit SegmentUse(std::shared_ptr<Segment> segment) : segment_(std::move(segment)) {}
  SegmentUse(const SegmentUse&) = delete;
  SegmentUse& operator=(const SegmentUse&) = delete;
  ~SegmentUse() { segment_->leave(); }
  const Segment& segment() const { return *segment_; }
  const std::shared_ptr<Segment>& shared() const { return segment_; }

 private:
  std::shared_ptr<Segment> segment_;
};

class SegmentRegistry {
 public:
  static constexpr std::size_t kMaxSegments = 4096;

  // Gives the segment a slot; peers find it when it is published. Throws
  // TransferFailure(kSegmentOverlap) where open memory overlaps, ArgumentError for a name that is
  // taken or too long, ResourceError when all slots are taken.
  void add(const std::shared_ptr<Segment>& segment);
  void publish(const Segment& segment);
  void remove(const Segment& segment);
  std::vector<std::shared_ptr<Segment>> all() const;

  // What peers ask for. A segment without remote access is not there for them.
  Status find(const std::string& name, net::SegmentDescriptor& descriptor) const;
  std::string names() const;  // for error messages, at most 4096 bytes
  std::shared_ptr<SegmentUse> use(uint32_t slot, uint32_t epoch) const;  // null: closed

 private:
  struct Slot {
    uint32_t epoch = 0;
    bool published = false;
    std::shared_ptr<Segment> segment;
  };

  mutable std::mutex mutex_;
  std::vector<Slot> slots_;
};

}  // namespace inlay::transfer
