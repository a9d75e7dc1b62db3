#include "uring.h"

#include <poll.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace inlay::net {

namespace {

// Linux 6.1 has both; headers may be older than the kernel. With them completions are worked off
// where the owner waits for them, and nowhere else.
constexpr uint32_t kSingleIssuer = 1U << 12;
constexpr uint32_t kDeferTaskrun = 1U << 13;

int setup(unsigned entries, io_uring_params& params, uint32_t flags) {
  params = {};
  params.flags = flags;
  return static_cast<int>(syscall(__NR_io_uring_setup, entries, &params));
}

}  // namespace

Uring::Mapping::~Mapping() {
  if (at != nullptr) munmap(at, bytes);
}

bool Uring::Mapping::map(const Descriptor& ring, std::size_t size, uint64_t offset) {
  void* mapped = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring.get(),
                      static_cast<off_t>(offset));
  if (mapped == MAP_FAILED) return false;
  at = mapped;
  bytes = size;
  // A forked child that kept it would keep the ring, too.
  madvise(at, bytes, MADV_DONTFORK);
  return true;
}

std::unique_ptr<Uring> Uring::make(unsigned entries, int& error) {
  std::unique_ptr<Uring> uring(new Uring());
  io_uring_params params;
  int ring = setup(entries, params, kSingleIssuer | kDeferTaskrun);
  if (ring < 0 && errno == EINVAL) ring = setup(entries, params, 0);
  error = ring < 0 ? errno : 0;
  if (ring < 0) return nullptr;
  uring->ring_ = Descriptor(ring);
  // IORING_FEAT_RW_CUR_POS came with IORING_OP_READ and WRITE.
  constexpr uint32_t kNeeded =
      IORING_FEAT_SINGLE_MMAP | IORING_FEAT_NODROP | IORING_FEAT_RW_CUR_POS;
  if ((params.features & kNeeded) != kNeeded) {
    error = EOPNOTSUPP;
    return nullptr;
  }
  const std::size_t of_sq = params.sq_off.array + params.sq_entries * sizeof(unsigned);
  const std::size_t of_cq = params.cq_off.cqes + params.cq_entries * sizeof(io_uring_cqe);
  if (!uring->queues_.map(uring->ring_, std::max(of_sq, of_cq), IORING_OFF_SQ_RING) ||
      !uring->entries_.map(uring->ring_, params.sq_entries * sizeof(io_uring_sqe),
                           IORING_OFF_SQES)) {
    error = ENOMEM;
    return nullptr;
  }
  auto* const base = static_cast<std::byte*>(uring->queues_.at);
  const auto at = [base](uint32_t offset) { return reinterpret_cast<unsigned*>(base + offset); };
  uring->sq_entries_ = params.sq_entries;
  uring->sq_mask_ = *at(params.sq_off.ring_mask);
  uring->cq_mask_ = *at(params.cq_off.ring_mask);
  uring->sq_head_ = at(params.sq_off.head);
  uring->sq_tail_ = at(params.sq_off.tail);
  uring->sq_array_ = at(params.sq_off.array);
  uring->cq_head_ = at(params.cq_off.head);
  uring->cq_tail_ = at(params.cq_off.tail);
  uring->cqes_ = reinterpret_cast<io_uring_cqe*>(base + params.cq_off.cqes);
  uring->sqes_ = static_cast<io_uring_sqe*>(uring->entries_.at);
  return uring;
}

io_uring_sqe* Uring::next() {
  const unsigned tail = *sq_tail_ + added_;
  if (tail - __atomic_load_n(sq_head_, __ATOMIC_ACQUIRE) == sq_entries_) return nullptr;
  const unsigned index = tail & sq_mask_;
  sq_array_[index] = index;
  ++added_;
  io_uring_sqe* const sqe = &sqes_[index];
  std::memset(sqe, 0, sizeof(*sqe));
  return sqe;
}

bool Uring::move(uint8_t opcode, int file, uint64_t offset, void* memory, uint32_t bytes,
                 uint64_t tag) {
  io_uring_sqe* const sqe = next();
  if (sqe == nullptr) return false;
  sqe->opcode = opcode;
  sqe->fd = file;
  sqe->off = offset;
  sqe->addr = reinterpret_cast<uintptr_t>(memory);
  sqe->len = bytes;
  sqe->user_data = tag;
  return true;
}

bool Uring::poll_in(int descriptor, uint64_t tag) {
  io_uring_sqe* const sqe = next();
  if (sqe == nullptr) return false;
  sqe->opcode = IORING_OP_POLL_ADD;
  sqe->fd = descriptor;
  sqe->poll32_events = POLLIN;
  sqe->user_data = tag;
  return true;
}

int Uring::submit(unsigned completions) {
  __atomic_store_n(sq_tail_, *sq_tail_ + added_, __ATOMIC_RELEASE);
  added_ = 0;
  const unsigned waiting = *sq_tail_ - __atomic_load_n(sq_head_, __ATOMIC_ACQUIRE);
  const long taken = syscall(__NR_io_uring_enter, ring_.get(), waiting, completions,
                             IORING_ENTER_GETEVENTS, nullptr, 0);
  return taken < 0 ? errno : 0;
}

}  // namespace inlay::net
