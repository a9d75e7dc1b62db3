#include "file_queue.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <future>
#include <utility>

#include "../core/errors.h"
#include "../core/start_thread.h"
#include "uring.h"

namespace inlay::net {

namespace {

constexpr std::size_t kSlots = std::max(FileQueue::kDepth, FileQueue::kThreads);
constexpr uint64_t kWakeTag = ~uint64_t{0};
// io_uring_enter(2) asks for patience when the kernel is short of memory.
constexpr int kPatience_ms = 1;

uint64_t block_floor(uint64_t value) { return value & ~(kFileBlockBytes - 1); }
uint64_t block_ceil(uint64_t value) { return block_floor(value + kFileBlockBytes - 1); }

// Signals are for the threads of the program.
void settle_in() {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
  pthread_setname_np(pthread_self(), "inlay-file");
}

}  // namespace

std::shared_ptr<std::byte> map_file_memory(std::size_t bytes) {
  constexpr std::size_t kHugePage = std::size_t{2} << 20;
  bytes = (bytes + kHugePage - 1) & ~(kHugePage - 1);
  void* at = mmap(nullptr, bytes + kHugePage, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED)
    throw ResourceError("the system gives no " + std::to_string(bytes) + " bytes of memory");
  const std::shared_ptr<void> whole(at, [bytes](void* all) { munmap(all, bytes + kHugePage); });
  const uintptr_t aligned = (reinterpret_cast<uintptr_t>(at) + kHugePage - 1) & ~(kHugePage - 1);
  auto* const memory = reinterpret_cast<std::byte*>(aligned);
  madvise(memory, bytes, MADV_HUGEPAGE);
  // A page that the disk fills while a child is forked could end up as the child's.
  madvise(memory, bytes, MADV_DONTFORK);
  return {whole, memory};
}

FileQueue::FileQueue(Way way)
    : bounce_(map_file_memory(std::size_t{kBounceBytes} * kSlots)), slots_(kSlots) {
  std::byte* bounce = bounce_.get();
  for (Slot& slot : slots_) {
    slot.bounce = bounce;
    bounce += kBounceBytes;
  }
  if (way == Way::kBest) {
    // The ring belongs to the thread that makes it.
    const auto made = std::make_shared<std::promise<int>>();
    threads_.push_back(start_thread([this, made] {
      settle_in();
      int error = 0;
      const std::unique_ptr<Uring> uring = Uring::make(kDepth + 1, error);
      made->set_value(error);
      if (uring != nullptr) run_ring(*uring);
    }));
    ring_problem_ = made->get_future().get();
    if (ring_problem_ == 0) return;
    threads_.front().join();
    threads_.clear();
  }
  try {
    for (unsigned i = 0; i < kThreads; ++i)
      threads_.push_back(start_thread([this, i] { run_thread(i); }));
  } catch (...) {
    stop();
    throw;
  }
}

FileQueue::~FileQueue() { stop(); }

void FileQueue::post(FileIo* list) {
  if (list == nullptr) return;
  FileIo* last = list;
  while (last->next != nullptr) last = last->next;
  bool was_empty = false;
  {
    const std::lock_guard lock(mutex_);
    if (!stopping_) {
      was_empty = first_ == nullptr;
      (was_empty ? first_ : last_->next) = list;
      last_ = last;
      list = nullptr;
    }
  }
  if (list != nullptr) {
    cancel(list);
  } else if (threads_.size() > 1) {
    posted_.notify_all();
  } else if (was_empty) {
    wake_.signal();
  }
}

void FileQueue::stop() {
  FileIo* waiting = nullptr;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    waiting = std::exchange(first_, nullptr);
  }
  posted_.notify_all();
  wake_.signal();
  cancel(waiting);
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

void FileQueue::cancel(FileIo* list) {
  while (list != nullptr) {
    FileIo& io = *std::exchange(list, list->next);
    io.next = nullptr;
    io.error = ECANCELED;
    io.owner->done(io);
  }
}

// False: it is done without a system call.
bool FileQueue::begin(Slot& slot, FileIo& io) {
  io.next = nullptr;
  slot.io = &io;
  slot.moved = 0;
  if (!io.owner->begin(io, slot.bounce)) {
    finish(slot, ECANCELED);
    return false;
  }
  if (io.form != FileForm::kBounced) {
    slot.offset = io.offset;
    slot.memory = io.memory;
    slot.left = io.bytes;
    return true;
  }
  slot.offset = block_floor(io.offset);
  slot.memory = slot.bounce;
  slot.left = static_cast<uint32_t>(block_ceil(io.offset + io.bytes) - slot.offset);
  return true;
}

// Takes the result of a system call; false: the io is done, or else more is to be moved.
bool FileQueue::advance(Slot& slot, int64_t result) {
  FileIo& io = *slot.io;
  if (result == -EAGAIN || result == -EINTR) return true;
  if (result < 0) {
    finish(slot, static_cast<int>(-result));
    return false;
  }
  const auto step = static_cast<uint32_t>(result);
  slot.moved += step;
  slot.offset += step;
  slot.memory += step;
  slot.left -= step;
  const bool bounced = io.form == FileForm::kBounced;
  const uint64_t skip = bounced ? io.offset - block_floor(io.offset) : 0;
  const bool whole = slot.moved >= skip + io.bytes;
  // Direct reads end inside a block where the file does, and could not go on from there.
  const bool ended = step == 0 || (io.form != FileForm::kPlain && step % kFileBlockBytes != 0);
  if (!whole && !ended) return true;
  if (whole && bounced && !io.write) std::memcpy(io.memory, slot.bounce + skip, io.bytes);
  finish(slot, whole ? 0 : io.write ? EIO : ENODATA);
  return false;
}

void FileQueue::finish(Slot& slot, int error) {
  FileIo& io = *std::exchange(slot.io, nullptr);
  io.error = error;
  io.owner->done(io);
}

FileIo* FileQueue::take_posted() {
  const std::lock_guard lock(mutex_);
  return std::exchange(first_, nullptr);
}

void FileQueue::run_ring(Uring& uring) {
  std::vector<unsigned> free;
  for (unsigned i = kDepth; i-- > 0;) free.push_back(i);
  FileIo* waiting = nullptr;
  FileIo** end = &waiting;
  std::vector<unsigned> again;  // slots that have more to move
  bool armed = false;
  bool stopping = false;
  const auto move = [&](unsigned index) {
    const Slot& slot = slots_[index];
    uring.move(slot.io->write ? IORING_OP_WRITE : IORING_OP_READ, slot.io->file, slot.offset,
               slot.memory, slot.left, index);
  };
  while (!stopping || free.size() < kDepth) {
    // The ring has room for all slots and the wake-up, so no call of it is refused.
    if (!armed) armed = uring.poll_in(wake_.fd(), kWakeTag);
    for (const unsigned index : again) move(index);
    again.clear();
    while (waiting != nullptr && !free.empty()) {
      FileIo& io = *std::exchange(waiting, waiting->next);
      if (waiting == nullptr) end = &waiting;
      if (!begin(slots_[free.back()], io)) continue;
      move(free.back());
      free.pop_back();
    }
    const int error = uring.submit(1);
    if (error != 0 && error != EINTR) poll(nullptr, 0, kPatience_ms);
    uring.reap([&](uint64_t tag, int32_t result) {
      if (tag == kWakeTag) {
        armed = false;
        wake_.reset();
        return;
      }
      const auto index = static_cast<unsigned>(tag);
      if (advance(slots_[index], result))
        again.push_back(index);
      else
        free.push_back(index);
    });
    if (!armed || waiting == nullptr) {
      *end = take_posted();
      while (*end != nullptr) end = &(*end)->next;
    }
    if (!armed) {
      const std::lock_guard lock(mutex_);
      stopping = stopping_;
    }
    if (stopping) {
      cancel(std::exchange(waiting, nullptr));
      end = &waiting;
    }
  }
}

void FileQueue::run_thread(unsigned index) {
  settle_in();
  Slot& slot = slots_[index];
  for (;;) {
    FileIo* io = nullptr;
    {
      std::unique_lock lock(mutex_);
      posted_.wait(lock, [this] { return stopping_ || first_ != nullptr; });
      if (first_ == nullptr) return;
      io = std::exchange(first_, first_->next);
    }
    if (!begin(slot, *io)) continue;
    int64_t result = 0;
    do {
      const auto at = static_cast<off_t>(slot.offset);
      const ssize_t moved = io->write ? pwrite(io->file, slot.memory, slot.left, at)
                                      : pread(io->file, slot.memory, slot.left, at);
      result = moved < 0 ? -errno : moved;
    } while (advance(slot, result));
  }
}

}  // namespace inlay::net
