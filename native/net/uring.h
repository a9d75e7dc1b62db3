// io_uring(7) by its system calls. Not for several threads: its owner is the only one that submits
// and reaps, which spares other threads the interruptions by completions.
#pragma once

#include <linux/io_uring.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "socket.h"

namespace inlay::net {

class Uring {
 public:
  // Null where the kernel refuses one; `error` says why: EPERM, ENOSYS, ENOMEM, or EOPNOTSUPP for a
  // kernel before 5.6. To be used by the calling thread alone.
  static std::unique_ptr<Uring> make(unsigned entries, int& error);
  Uring(const Uring&) = delete;
  Uring& operator=(const Uring&) = delete;

  // A read (IORING_OP_READ) or write of one run of bytes. False: `entries` wait for submit().
  bool move(uint8_t opcode, int file, uint64_t offset, void* memory, uint32_t bytes, uint64_t tag);
  // Completes once when the descriptor is readable.
  bool poll_in(int descriptor, uint64_t tag);
  // Submits what was added and waits for `completions`. 0, or the error of io_uring_enter(2): what
  // was not taken is submitted by the next call.
  int submit(unsigned completions);
  // Calls done(tag, result) for each completion that is there; result as of the system call, with
  // -errno for errors. Returns how many.
  template <typename Done>
  unsigned reap(Done&& done) {
    unsigned head = *cq_head_;
    const unsigned tail = __atomic_load_n(cq_tail_, __ATOMIC_ACQUIRE);
    const unsigned count = tail - head;
    for (; head != tail; ++head) {
      const io_uring_cqe& cqe = cqes_[head & cq_mask_];
      done(uint64_t{cqe.user_data}, int32_t{cqe.res});
    }
    __atomic_store_n(cq_head_, head, __ATOMIC_RELEASE);
    return count;
  }

 private:
  struct Mapping {
    void* at = nullptr;
    std::size_t bytes = 0;
    Mapping() = default;
    Mapping(const Mapping&) = delete;
    Mapping& operator=(const Mapping&) = delete;
    ~Mapping();
    bool map(const Descriptor& ring, std::size_t size, uint64_t offset);
  };

  Uring() = default;
  io_uring_sqe* next();

  Descriptor ring_;
  Mapping queues_;
  Mapping entries_;
  unsigned added_ = 0;  // since the last submit()
  unsigned sq_entries_ = 0;
  unsigned sq_mask_ = 0;
  unsigned cq_mask_ = 0;
  unsigned* sq_head_ = nullptr;
  unsigned* sq_tail_ = nullptr;
  unsigned* sq_array_ = nullptr;
  unsigned* cq_head_ = nullptr;
  unsigned* cq_tail_ = nullptr;
  io_uring_cqe* cqes_ = nullptr;
  io_uring_sqe* sqes_ = nullptr;
};

}  // namespace inlay::net
