// Files as registered memory: opened, locked and sized; and bytes moved between one and memory.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "../core/status.h"
#include "../net/file_queue.h"
#include "../net/socket.h"
#include "far_memory.h"

namespace inlay::transfer {

struct FileOptions {
  std::string path;
  // None: as long as the file is. A shorter file grows, a longer one keeps what is beyond.
  std::optional<uint64_t> size;
  // The disk's blocks are reserved now, so that no write meets a full disk later.
  bool preallocate = true;
};

// An open file of which this process has the use for itself while it lives: another that opens it
// so is refused, unless both only read; and waits for what the disk still has to do for a process
// that was killed. It is never shortened, and stays when the object goes.
class DiskFile final : public FarMemory {
 public:
  // Makes the file (0600) where there is none and a size is given. Throws ArgumentError,
  // TransferFailure(kStorageFull, kFile, kSegmentOverlap) naming the path.
  DiskFile(const FileOptions& options, std::shared_ptr<net::FileQueue> queue);

  // Takes the file away again if it was made here.
  void discard();

  const std::string path;
  uint64_t size() const { return size_; }
  bool writable() const { return writable_; }  // else marked as read-only, or its file system is
  bool direct() const { return direct_.valid(); }  // past the page cache

  std::unique_ptr<FarMove> move(bool write, FarMove::Done done) override;
  Problem problem() const override;

 private:
  friend class FileMove;
  // Bytes of the file that are locked, the first through plain_, the second through direct_.
  enum class Lock : uint8_t { kInUse = 0, kMoves = 1 };

  [[noreturn]] void fail(const char* what, int error) const;
  void open(const FileOptions& options);
  void give_size(const FileOptions& options);
  void open_direct();
  bool lock(const net::Descriptor& file, Lock what) const;
  void wait_for_earlier_moves() const;

  bool created_ = false;
  bool writable_ = true;
  uint64_t size_ = 0;
  uint64_t memory_align_ = net::kFileBlockBytes;  // of direct moves
  net::Descriptor plain_;
  net::Descriptor direct_;
  std::atomic<int> last_error_{0};
  const std::shared_ptr<net::FileQueue> queue_;
};

// The status of an error of the system; 0 is kOk.
Status file_status(int error);

// Runs of bytes that move between one file and memory together.
//
// What is aligned moves directly. Of the rest, reads take the blocks around it and copy, writes of
// parts of blocks go through the page cache: two of them may share a block, and the kernel keeps
// both right.
class FileMove final : public FarMove, private net::FileIoOwner {
 public:
  // `done` is called on a thread of the queue, or by start() when the queue is stopped.
  FileMove(DiskFile& file, bool write, Done done);

  void add(uint64_t offset, std::byte* memory, uint64_t bytes) override;
  void start() override;
  // Afterwards only the kernel touches memory.
  void cancel() override;

 private:
  bool begin(const net::FileIo& io, std::byte* bounce) override;
  void done(net::FileIo& io) override;
  void cut(net::FileForm form, uint64_t offset, std::byte* memory, uint64_t bytes);

  DiskFile& file_;
  const bool write_;
  Done done_;
  std::vector<net::FileIo> ios_;
  std::atomic<std::size_t> left_{0};
  std::atomic<int> error_{0};
  std::mutex mutex_;
  bool wanted_ = true;
};

}  // namespace inlay::transfer
