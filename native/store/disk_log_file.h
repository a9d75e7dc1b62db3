// The file of a disk log: runs of bytes to and from memory, room that is reserved, and syncs that
// many callers share.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>

#include "../net/socket.h"
#include "../transfer/far_memory.h"

namespace inlay::store {

enum class [[nodiscard]] LogStatus : uint8_t {
  kOk,
  kNotFound,  // of that key and generation there is no record
  kDamaged,   // the disk gave other bytes than were written; remove the record
  kFull,      // the log's limit, or the disk: remove records and compact, then try again
  kFailed,    // the system refused to read or write
};

class LogFile {
 public:
  // `memory` moves the file's bytes and outlives this object; `path` leads to the same file, which
  // others cannot read afterwards. Throws TransferFailure(kFile).
  LogFile(transfer::FarMemory& memory, const std::string& path);

  struct Run {
    uint64_t offset;
    std::byte* memory;
    uint64_t bytes;
  };
  // Returns when all bytes are moved, or the first problem is known and nothing moves any more.
  LogStatus read(std::span<const Run> runs) { return move(false, runs); }
  LogStatus write(std::span<const Run> runs);

  // Takes the disk's blocks for that part of the file, where its file system can say so.
  LogStatus reserve(uint64_t offset, uint64_t bytes);

  // When it returns kOk, what was written before the call is on the disk. Calls that come while the
  // disk is busy with one are served by the next one together. Once it failed it always does: what
  // the system has dropped then is not known.
  LogStatus sync();

 private:
  LogStatus move(bool write, std::span<const Run> runs);

  transfer::FarMemory& memory_;
  net::Descriptor file_;
  std::mutex mutex_;
  std::condition_variable synced_more_;
  uint64_t written_ = 0;  // counts writes
  uint64_t synced_ = 0;   // of those
  bool syncing_ = false;
  bool failed_ = false;
};

}  // namespace inlay::store
