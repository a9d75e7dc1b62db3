// What engines of one host tell each other about device memory, over a side channel. An initiator
// holds a segment from kOpen until its kRelease; the owner's memory stays in place as long.
#pragma once

#include "../net/cuda/driver.h"
#include "shm_messages.h"

namespace inlay::transfer::ipc {

using shm::bytes_of;
using shm::Offer;
using shm::read_as;
using shm::Ticket;

// What a peer has to know of a segment before it asks: on which device it is.
struct Key {
  net::cuda::Uuid device;
};

enum class Kind : uint32_t {
  kHello = 1,  // -> ticket, start of the process      kWelcome   <-
  kOpen,       // -> slot, epoch                       kOpened    <- status, and how to map it
  kRelease,    // -> slot, epoch: it is mapped no more
  kClosed,     // <- slot, epoch: release it soon
  kBye,        // -> nothing is mapped any more, nothing is asked for; the owner hangs up
  kWelcome,
  kOpened,
};

struct Hello {
  Kind kind = Kind::kHello;
  uint32_t zero = 0;
  Ticket ticket{};
  uint64_t start_time = 0;
};

struct SegmentMessage {  // all but kHello and kOpened
  Kind kind = Kind::kOpen;
  Status status = Status::kOk;
  uint16_t zero = 0;
  uint32_t slot = 0;
  uint32_t epoch = 0;
};

struct OpenedMessage {
  SegmentMessage segment{Kind::kOpened};
  net::cuda::Uuid device;
  net::cuda::IpcHandle handle;  // of the allocation
  uint64_t offset = 0;          // of the segment in it
  uint64_t size = 0;
  uint64_t writable = 0;
};

}  // namespace inlay::transfer::ipc
