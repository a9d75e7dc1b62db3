#include "disk_file.h"

#include <fcntl.h>
#include <linux/stat.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <system_error>
#include <thread>

#include "../core/errors.h"

namespace inlay::transfer {

using net::FileForm;
using net::FileIo;
using net::kBounceBytes;
using net::kFileBlockBytes;

namespace {

// One request of a direct move. Smaller ones cost calls, larger ones keep less under way at a time.
constexpr uint64_t kPieceBytes = uint64_t{512} << 10;
// A read of so little goes as one with its blocks, not in up to three parts.
constexpr uint64_t kWholeBytes = uint64_t{64} << 10;
// A disk that takes longer for what is under way has failed.
constexpr std::chrono::seconds kEarlierMoves{60};

uint64_t block_floor(uint64_t value) { return value & ~(kFileBlockBytes - 1); }
uint64_t block_ceil(uint64_t value) { return block_floor(value + kFileBlockBytes - 1); }

std::string error_text(int error) { return std::generic_category().message(error); }

bool is_read_only_error(int error) { return error == EACCES || error == EROFS || error == EPERM; }

std::string free_space(int file) {
  struct statvfs disk{};
  if (fstatvfs(file, &disk) != 0) return {};
  return std::to_string(uint64_t{disk.f_bavail} * disk.f_frsize) + " of " +
         std::to_string(uint64_t{disk.f_blocks} * disk.f_frsize) + " bytes of the disk are free";
}

}  // namespace

Status file_status(int error) {
  switch (error) {
    case 0:
      return Status::kOk;
    case ECANCELED:
      return Status::kCancelled;
    case ENOSPC:
    case EDQUOT:
    case EFBIG:  // the process's limit, or the file system's
      return Status::kStorageFull;
    default:
      return Status::kFile;
  }
}

DiskFile::DiskFile(const FileOptions& options, std::shared_ptr<net::FileQueue> queue)
    : path(options.path), queue_(std::move(queue)) {
  if (path.empty() || path.find('\0') != std::string::npos)
    throw ArgumentError("path: must name a file");
  if (options.size && (*options.size == 0 || *options.size > INT64_MAX))
    throw ArgumentError("size: must be at least 1, got " + std::to_string(*options.size));
  open(options);
  try {
    give_size(options);
    open_direct();
    wait_for_earlier_moves();
  } catch (...) {
    discard();
    throw;
  }
}

void DiskFile::discard() {
  if (created_) unlink(path.c_str());
}

void DiskFile::fail(const char* what, int error) const {
  const Status status =
      file_status(error) == Status::kStorageFull ? Status::kStorageFull : Status::kFile;
  std::string text = "file '" + path + "': " + what + ": " + error_text(error);
  if (status == Status::kStorageFull && plain_.valid()) text += "; " + free_space(plain_.get());
  TransferFailure failure(status, text);
  failure.system_error = error;
  throw failure;
}

void DiskFile::open(const FileOptions& options) {
  // Not to wait for the other end of a pipe.
  constexpr int kFlags = O_CLOEXEC | O_NOCTTY | O_NONBLOCK;
  int file = ::open(path.c_str(), O_RDWR | kFlags);
  if (file < 0 && errno == ENOENT && options.size) {
    file = ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | kFlags, 0600);
    created_ = file >= 0;
    if (file < 0 && errno == EEXIST) file = ::open(path.c_str(), O_RDWR | kFlags);
  }
  if (file < 0 && is_read_only_error(errno)) {
    file = ::open(path.c_str(), O_RDONLY | kFlags);
    writable_ = false;
  }
  if (file < 0 && errno == EISDIR) throw ArgumentError("path: '" + path + "' is a directory");
  if (file < 0)
    fail(errno == ENOENT && !options.size ? "without a size there must be a file" : "cannot open",
         errno);
  plain_ = net::Descriptor(file);
  struct stat found{};
  if (fstat(file, &found) != 0) fail("cannot look at it", errno);
  if (!S_ISREG(found.st_mode)) throw ArgumentError("path: '" + path + "' is no regular file");
  // Also for those whom the mode does not hold back.
  if ((found.st_mode & 0222) == 0) writable_ = false;
  if (lock(plain_, Lock::kInUse)) return;
  created_ = false;  // who locked it first owns it
  throw TransferFailure(Status::kSegmentOverlap,
                        "file '" + path + "' is in use by another engine: deregister it there");
}

void DiskFile::give_size(const FileOptions& options) {
  struct stat found{};
  if (fstat(plain_.get(), &found) != 0) fail("cannot look at it", errno);
  if (found.st_nlink == 0) fail("it was removed meanwhile", ENOENT);
  const auto length = static_cast<uint64_t>(found.st_size);
  size_ = options.size.value_or(length);
  if (size_ == 0) throw ArgumentError("path: '" + path + "' is empty: give its size");
  if (length >= size_ && (!options.preallocate || !writable_)) return;
  if (!writable_)
    throw TransferFailure(Status::kSegmentAccess,
                          "file '" + path + "' is read-only and has " + std::to_string(length) +
                              " bytes: it cannot grow to " + std::to_string(size_));
  const std::string what = "no room for its " + std::to_string(size_) + " bytes";
  const auto end = static_cast<off_t>(size_);
  if (length < size_ && ftruncate(plain_.get(), end) != 0) fail(what.c_str(), errno);
  if (!options.preallocate || fallocate(plain_.get(), 0, 0, end) == 0) return;
  const int error = errno;
  if (length < size_ && ftruncate(plain_.get(), found.st_size) != 0) fail(what.c_str(), errno);
  if (error == EOPNOTSUPP)
    fail("its file system reserves no blocks, ask for preallocate=False", error);
  fail(what.c_str(), error);
}

void DiskFile::open_direct() {
  // The same file, whatever its name leads to by now.
  const std::string name = "/proc/self/fd/" + std::to_string(plain_.get());
  const int mode = writable_ ? O_RDWR : O_RDONLY;
  net::Descriptor direct(::open(name.c_str(), mode | O_DIRECT | O_CLOEXEC));
  if (!direct.valid()) return;
#ifdef STATX_DIOALIGN
  struct statx found{};
  if (statx(direct.get(), "", AT_EMPTY_PATH, STATX_DIOALIGN, &found) == 0 &&
      (found.stx_mask & STATX_DIOALIGN) != 0) {
    const uint64_t in_file = found.stx_dio_offset_align;
    if (in_file == 0 || kFileBlockBytes % in_file != 0) return;
    if (found.stx_dio_mem_align > 0) memory_align_ = found.stx_dio_mem_align;
  }
#endif
  direct_ = std::move(direct);
}

// A lock of the open file description: it goes when the last descriptor is closed and the last move
// through it has ended, which may be after its process.
bool DiskFile::lock(const net::Descriptor& file, Lock what) const {
  struct flock range{};
  range.l_type = writable_ ? F_WRLCK : F_RDLCK;
  range.l_whence = SEEK_SET;
  range.l_start = static_cast<off_t>(what);
  range.l_len = 1;
  if (fcntl(file.get(), F_OFD_SETLK, &range) == 0) return true;
  if (errno != EAGAIN && errno != EACCES) fail("cannot lock it", errno);
  return false;
}

// What a killed process has given to the disk is written after its end: whoever opens the file
// next would read it in part, and lose what it writes in the same place.
void DiskFile::wait_for_earlier_moves() const {
  if (!direct_.valid()) return;
  const auto end = std::chrono::steady_clock::now() + kEarlierMoves;
  while (!lock(direct_, Lock::kMoves)) {
    if (std::chrono::steady_clock::now() >= end)
      fail("I/O of a process that was killed is still under way", ETIMEDOUT);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

std::unique_ptr<FarMove> DiskFile::move(bool write, FarMove::Done done) {
  return std::make_unique<FileMove>(*this, write, std::move(done));
}

FarMemory::Problem DiskFile::problem() const {
  const int error = last_error_.load();
  if (error == 0) return {};
  std::string text = "file '" + path + "' of " + std::to_string(size_) + " bytes: ";
  text += error == ENODATA ? "it was made shorter" : error_text(error);
  if (file_status(error) == Status::kStorageFull) text += "; " + free_space(plain_.get());
  return {error, std::move(text)};
}

FileMove::FileMove(DiskFile& file, bool write, Done done)
    : file_(file), write_(write), done_(std::move(done)) {}

void FileMove::cut(FileForm form, uint64_t offset, std::byte* memory, uint64_t bytes) {
  const uint64_t most = form == FileForm::kBounced ? kBounceBytes : kPieceBytes;
  const int descriptor = (form == FileForm::kPlain ? file_.plain_ : file_.direct_).get();
  for (const uint64_t end = offset + bytes; offset < end;) {
    // At the end of a block, so that no block is read twice.
    const uint64_t step = std::min(end, block_floor(offset) + most) - offset;
    ios_.push_back({this, descriptor, write_, form, offset, memory, static_cast<uint32_t>(step)});
    offset += step;
    memory += step;
  }
}

void FileMove::add(uint64_t offset, std::byte* memory, uint64_t bytes) {
  if (!file_.direct()) return cut(FileForm::kPlain, offset, memory, bytes);
  const uint64_t end = offset + bytes;
  const uint64_t first = std::min(end, block_ceil(offset));  // whole blocks: [first, last)
  const uint64_t last = std::max(first, block_floor(end));
  const bool fits =
      (reinterpret_cast<uintptr_t>(memory) + (first - offset)) % file_.memory_align_ == 0;
  const bool whole = first == offset && last == end;
  if (!write_ && !whole && (!fits || bytes <= kWholeBytes))
    return cut(FileForm::kBounced, offset, memory, bytes);
  const FileForm edge = write_ ? FileForm::kPlain : FileForm::kBounced;
  cut(edge, offset, memory, first - offset);
  cut(fits ? FileForm::kDirect : FileForm::kBounced, first, memory + (first - offset),
      last - first);
  cut(edge, last, memory + (last - offset), end - last);
}

void FileMove::start() {
  for (std::size_t i = 0; i + 1 < ios_.size(); ++i) ios_[i].next = &ios_[i + 1];
  left_.store(ios_.size());
  // It may be done, and the file gone, before the queue returns.
  const std::shared_ptr<net::FileQueue> queue = file_.queue_;
  queue->post(ios_.data());
}

void FileMove::cancel() {
  const std::lock_guard lock(mutex_);
  wanted_ = false;
}

bool FileMove::begin(const FileIo& io, std::byte* bounce) {
  const std::lock_guard lock(mutex_);
  if (wanted_ && write_ && io.form == FileForm::kBounced) std::memcpy(bounce, io.memory, io.bytes);
  return wanted_;
}

void FileMove::done(FileIo& io) {
  int none = 0;
  if (io.error != 0) error_.compare_exchange_strong(none, io.error);
  if (left_.fetch_sub(1) > 1) return;
  const int error = error_.load();
  if (error != 0 && error != ECANCELED) file_.last_error_.store(error);
  // It may end this object, and itself with it.
  const Done done = std::move(done_);
  done(file_status(error));
}

}  // namespace inlay::transfer
