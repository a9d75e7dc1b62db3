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

namespace inlay::transfer {

struct FileOptions {
  std::string path;
  // None: as long as the file is. A shorter file grows, a longer one keeps what is beyond.
  std::optional<uint64_t> size;
  // The disk's blocks are reserved now, so that no write meets a full disk later.
  bool preallocate = true;
};

// An open file of which this process has the use for itself while it lives: another that opens it
// so is refused, unless both only read. It is never shortened, and stays when the object goes.
class DiskFile {
 public:
  // Makes the file (0600) where there is none and a size is given. Throws ArgumentError,
  // TransferFailure(kStorageFull, kFile, kSegmentOverlap) naming the path.
  DiskFile(const FileOptions& options, std::shared_ptr<net::FileQueue> queue);
  DiskFile(const DiskFile&) = delete;
  DiskFile& operator=(const DiskFile&) = delete;

  // Takes the file away again if it was made here.
  void discard();

  const std::string path;
  uint64_t size() const { return size_; }
  bool writable() const { return writable_; }  // else marked as read-only, or its file system is
  bool direct() const { return direct_.valid(); }  // past the page cache

  // What the last move that failed met, an errno, and that with the path and sizes, for messages.
  int last_error() const { return last_error_.load(); }
  std::string problem() const;

 private:
  friend class FileMove;

  [[noreturn]] void fail(const char* what, int error) const;
  void open(const FileOptions& options);
  void give_size(const FileOptions& options);
  void open_direct();

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
class FileMove : private net::FileIoOwner {
 public:
  // Called on a thread of the queue after the last byte; the move may be destroyed by it.
  using Done = std::function<void(Status)>;

  // The file stays until the move is done.
  FileMove(DiskFile& file, bool write, Done done);
  FileMove(const FileMove&) = delete;
  FileMove& operator=(const FileMove&) = delete;

  // Inside the file; before start().
  void add(uint64_t offset, std::byte* memory, uint64_t bytes);
  // At least one byte was added. Of any thread; does not wait.
  void start();
  // What is not begun is left: `done` hears kCancelled if that is any of it, when the rest is over.
  // Afterwards only the kernel touches memory, and that of writes need not stay.
  void cancel();
  uint64_t bytes() const { return bytes_; }

 private:
  bool begin(const net::FileIo& io, std::byte* bounce) override;
  void done(net::FileIo& io) override;
  void cut(net::FileForm form, uint64_t offset, std::byte* memory, uint64_t bytes);

  DiskFile& file_;
  const bool write_;
  Done done_;
  uint64_t bytes_ = 0;
  std::vector<net::FileIo> ios_;
  std::atomic<std::size_t> left_{0};
  std::atomic<int> error_{0};
  std::mutex mutex_;
  bool wanted_ = true;
};

}  // namespace inlay::transfer
