// Frames over a connected socket, without waiting: what goes out, and what comes in. Payload moves
// between socket and registered memory without a copy, up to the 16 KiB that arrive beside a
// header.
//
// Not for several threads at once: their owner locks.
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "wire.h"

namespace inlay::net {

// Memory in pieces, consumed from the front.
class Pieces {
 public:
  void add(std::byte* data, std::size_t bytes);
  void clear();
  uint64_t bytes() const { return bytes_; }
  // Describes the front, in at most `max` pieces; returns how many.
  std::size_t fill(iovec* out, std::size_t max) const;
  void advance(uint64_t bytes);
  void copy_in(const std::byte* from, std::size_t bytes) const;  // at the front
  // Of its first bytes, going on from `before`.
  uint32_t crc(uint64_t bytes, uint32_t before) const;

 private:
  std::vector<iovec> parts_;
  std::size_t first_ = 0;
  uint64_t bytes_ = 0;
};

// kClosed: by the other end, where nothing lands any more. kBroken: the way to it.
enum class Io { kMoved, kBlocked, kClosed, kBroken };

// How far a connection is: bytes that wait or are under way, and those that arrived since it was
// asked before.
struct Load {
  uint64_t queued = 0;
  uint64_t moved = 0;
};

// Whom an Outbox asks where a network card is shared.
class Gate {
 public:
  // How many of `wanted` bytes may move now; 0: the Outbox is held until its owner tries again.
  virtual uint64_t grant(uint64_t wanted) = 0;

 protected:
  ~Gate() = default;
};

struct OutFrame {
  uint64_t serial = 0;  // the owner's name for it
  std::vector<std::byte> head;
  Pieces payload;
  std::shared_ptr<const void> kept;  // holds the payload's memory until it is sent
  bool verified = false;             // the payload's CRC follows it
  uint64_t fetches = 0;              // bytes that the answer brings

  // The Outbox's own: a CRC that grows as the payload is sent, and what sends it.
  struct Sum {
    uint64_t left;  // bytes that are not in it yet
    uint32_t crc = 0;
    std::array<std::byte, kTrailerBytes> trailer{};
  };
  std::unique_ptr<Sum> sum = nullptr;
};

class Outbox {
 public:
  bool empty() const { return frames_.empty(); }
  std::size_t size() const { return frames_.size(); }
  uint64_t bytes() const { return bytes_; }

  void push(OutFrame frame);
  // Payload is sent, and frames that fetch some, only as these grant it; null grants all. They
  // outlive it.
  void share(Gate* send, Gate* fetch) {
    send_.gate = send;
    fetch_.gate = fetch;
  }
  // Sends what the socket takes in one call.
  Io flush(int socket);
  // A gate refused; flush() asks it again.
  bool held() const { return held_; }
  // There is something for the socket to take.
  bool ready() const { return !frames_.empty() && !held_; }
  // Of what is sent.
  Load take_load(int socket);
  // Part of the first frame is sent: what is left of it has to follow.
  bool begun() const { return begun_; }
  std::deque<OutFrame>& frames() { return frames_; }
  // Takes out frames of which nothing is sent. The first, if begun, stays.
  template <typename Chosen>
  void drop(Chosen&& chosen);

 private:
  // What was granted and is not used.
  struct Grant {
    Gate* gate = nullptr;
    uint64_t bytes = 0;

    bool covers(uint64_t wanted);
  };

  static std::size_t sum_up(OutFrame& frame, iovec* parts, std::size_t count);

  std::deque<OutFrame> frames_;
  std::size_t head_sent_ = 0;  // of the first frame
  bool begun_ = false;
  uint64_t bytes_ = 0;
  Grant send_;
  Grant fetch_;
  bool held_ = false;
  uint64_t sent_ = 0;
  uint64_t arrived_ = 0;  // of that, when it was asked last
};

// What an Inbox tells its owner.
class Sink {
 public:
  // A frame's head. `landing` is empty; what is added to it receives the payload, and all of the
  // payload is skipped when nothing is. Returns what is wrong with the frame, or null.
  virtual const char* on_frame(const Frame& frame, std::span<const WireRange> ranges,
                               Pieces& landing) = 0;
  // The payload of the last frame (also of one without any) is there or skipped. As above.
  virtual const char* on_payload_end() = 0;
  // True: no further frame for now.
  virtual bool paused() const { return false; }

 protected:
  ~Sink() = default;
};

class Inbox {
 public:
  Inbox() : buffer_(kBufferBytes) {}

  // Receives once. kClosed: the other end closed, or problem() tells what it did wrong.
  Io receive(int socket, Sink& sink);
  const char* problem() const { return problem_; }
  // From now on what came of a payload is acknowledged at once, when little is left of it: the
  // sender may wait for that, and a lone packet is acknowledged up to 40 ms late.
  void acknowledge_early() { acknowledges_early_ = true; }
  bool in_payload() const { return payload_left_ > 0; }
  // What is left of the payload is skipped.
  void skip_rest() {
    landing_.clear();
    verified_ = false;
    summed_ = false;
  }
  // In Sink::on_frame(): sum() of this payload will be wanted.
  void sum_payload() { summed_ = true; }
  // In Sink::on_payload_end(): the CRC32C of what landed, where it was wanted.
  uint32_t sum() const { return crc_; }
  // For Sink::on_payload_end(): the payload is as its CRC says. Also where there was none to check.
  bool intact() const { return intact_; }
  // Of payload, since the last call.
  uint64_t take_received() { return std::exchange(received_, 0); }

 private:
  static constexpr std::size_t kBufferBytes = 16384;

  bool parse(Sink& sink);
  void land(uint64_t bytes);
  void take_payload(std::size_t bytes, Sink& sink);

  std::vector<std::byte> buffer_;
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
  uint64_t payload_left_ = 0;  // with the trailer
  uint64_t received_ = 0;
  Pieces landing_;  // which lands in trailer_
  bool acknowledges_early_ = false;
  bool verified_ = false;
  bool summed_ = false;
  bool intact_ = true;
  uint32_t crc_ = 0;
  std::array<std::byte, kTrailerBytes> trailer_{};
  std::vector<WireRange> ranges_;
  const char* problem_ = nullptr;
};

template <typename Chosen>
void Outbox::drop(Chosen&& chosen) {
  for (std::size_t i = begun_ ? 1 : 0; i < frames_.size();) {
    OutFrame& frame = frames_[i];
    if (!chosen(frame)) {
      ++i;
      continue;
    }
    bytes_ -= frame.head.size() + frame.payload.bytes();
    frames_.erase(frames_.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

}  // namespace inlay::net
