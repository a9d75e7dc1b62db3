#include "disk_log_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <optional>
#include <system_error>

#include "../core/status.h"

namespace inlay::store {

namespace {

// Of a move that somebody waits for.
class End {
 public:
  void set(Status status) {
    const std::lock_guard lock(mutex_);
    status_ = status;
    set_.notify_one();  // with the lock: who waits ends this object
  }
  Status wait() {
    std::unique_lock lock(mutex_);
    set_.wait(lock, [this] { return status_.has_value(); });
    return *status_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable set_;
  std::optional<Status> status_;
};

LogStatus log_status(Status status) {
  if (status == Status::kOk) return LogStatus::kOk;
  return status == Status::kStorageFull ? LogStatus::kFull : LogStatus::kFailed;
}

}  // namespace

LogFile::LogFile(transfer::FarMemory& memory, const std::string& path)
    : memory_(memory), file_(open(path.c_str(), O_RDWR | O_CLOEXEC)) {
  if (file_.valid() && fchmod(file_.get(), 0600) == 0) return;
  const int error = errno;
  TransferFailure failure(Status::kFile, "disk log '" + path + "': cannot open it: " +
                                             std::generic_category().message(error));
  failure.system_error = error;
  throw failure;
}

LogStatus LogFile::move(bool write, std::span<const Run> runs) {
  End end;
  const auto move = memory_.move(write, [&end](Status status) { end.set(status); });
  bool any = false;
  for (const Run& run : runs) {
    if (run.bytes == 0) continue;
    move->add(run.offset, run.memory, run.bytes);
    any = true;
  }
  if (!any) return LogStatus::kOk;
  move->start();
  return log_status(end.wait());
}

LogStatus LogFile::write(std::span<const Run> runs) {
  const LogStatus status = move(true, runs);
  const std::lock_guard lock(mutex_);
  ++written_;
  return status;
}

LogStatus LogFile::reserve(uint64_t offset, uint64_t bytes) {
  if (fallocate(file_.get(), FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
                static_cast<off_t>(bytes)) == 0)
    return LogStatus::kOk;
  if (errno == EOPNOTSUPP) return LogStatus::kOk;  // a write may find the disk full, then
  return errno == ENOSPC || errno == EDQUOT ? LogStatus::kFull : LogStatus::kFailed;
}

LogStatus LogFile::sync() {
  std::unique_lock lock(mutex_);
  const uint64_t mine = written_;
  while (synced_ < mine && !failed_) {
    if (syncing_) {
      synced_more_.wait(lock);
      continue;
    }
    syncing_ = true;
    const uint64_t all = written_;
    lock.unlock();
    const bool synced = fdatasync(file_.get()) == 0;
    lock.lock();
    syncing_ = false;
    failed_ |= !synced;
    if (synced) synced_ = all;
    synced_more_.notify_all();
  }
  return failed_ ? LogStatus::kFailed : LogStatus::kOk;
}

}  // namespace inlay::store
