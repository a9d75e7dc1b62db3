// Reads and writes of files, many at a time: by io_uring(7) on one thread, or by a few threads that
// wait for each system call where the kernel refuses a ring.
//
// Own threads, because a ring interrupts the system calls of whoever submits to it, and gives up
// what was submitted by a thread that ends.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "socket.h"

namespace inlay::net {

struct FileIo;

class FileIoOwner {
 public:
  // Asked before memory is touched; false: the bytes are no longer wanted (ECANCELED). Of a write
  // that is bounced it copies them to `bounce`.
  virtual bool begin(const FileIo& io, std::byte* bounce) = 0;
  // The io is the owner's again. Neither call may wait.
  virtual void done(FileIo& io) = 0;

 protected:
  ~FileIoOwner() = default;
};

constexpr uint64_t kFileBlockBytes = 4096;
constexpr uint32_t kBounceBytes = 256 * 1024;

enum class FileForm : uint8_t {
  kPlain,   // any offset, memory and length
  kDirect,  // O_DIRECT: whole blocks of kFileBlockBytes, memory aligned as the file wants it
  // O_DIRECT through memory of the queue. The blocks around a read have at most kBounceBytes; a
  // write has whole blocks, at most so many.
  kBounced,
};

// One run of bytes between a file and memory. The queue's from post() until done().
struct FileIo {
  FileIoOwner* owner = nullptr;
  int file = -1;
  bool write = false;
  FileForm form = FileForm::kPlain;
  uint64_t offset = 0;
  std::byte* memory = nullptr;
  uint32_t bytes = 0;
  // Of the system call; ENODATA: the file ends before the last byte. 0: all bytes moved.
  int error = 0;
  FileIo* next = nullptr;
};

// Zeroed memory for direct moves, in huge pages where there are any: a disk fills those in one
// piece, and 512 KiB of small ones at a third of the speed. Not there in forked children. Throws
// ResourceError.
std::shared_ptr<std::byte> map_file_memory(std::size_t bytes);

class FileQueue {
 public:
  enum class Way { kBest, kThreads };
  static constexpr unsigned kDepth = 64;   // under way at a time with a ring
  static constexpr unsigned kThreads = 8;  // without

  // Throws ResourceError when the system gives no threads or memory.
  explicit FileQueue(Way way = Way::kBest);
  FileQueue(const FileQueue&) = delete;
  FileQueue& operator=(const FileQueue&) = delete;
  ~FileQueue();

  // Why there is no ring, or 0.
  int ring_problem() const { return ring_problem_; }
  // Of any thread. Moved in the order of posting as far as the kernel keeps it, which it need not.
  // `list` is linked by `next`. After stop() all are done with ECANCELED before this returns.
  void post(FileIo* list);
  // What has not begun is done with ECANCELED; returns when nothing is under way. Not of done().
  void stop();

 private:
  // What is under way.
  struct Slot {
    FileIo* io = nullptr;
    std::byte* bounce = nullptr;
    uint64_t offset = 0;
    std::byte* memory = nullptr;
    uint32_t left = 0;
    uint32_t moved = 0;
  };

  static bool begin(Slot& slot, FileIo& io);
  static bool advance(Slot& slot, int64_t result);
  static void finish(Slot& slot, int error);
  static void cancel(FileIo* list);
  FileIo* take_posted();
  void run_ring(class Uring& uring);
  void run_thread(unsigned index);

  int ring_problem_ = 0;
  WakeUp wake_;  // of the ring's thread
  const std::shared_ptr<std::byte> bounce_;
  std::vector<Slot> slots_;
  std::vector<std::thread> threads_;

  std::mutex mutex_;
  std::condition_variable posted_;
  bool stopping_ = false;
  FileIo* first_ = nullptr;
  FileIo* last_ = nullptr;
};

}  // namespace inlay::net
