#include "process_memory.h"

#include <poll.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <mutex>
#include <system_error>

#include "../core/errors.h"

namespace inlay::net {

namespace {

// 0 when there is no such process.
uint64_t start_time_of(int32_t pid) {
  constexpr int kStartTimeAfterName = 20;  // field 22 of proc(5); the name is field 2
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  std::getline(file, text);
  // The name may hold anything, parentheses too.
  std::size_t at = text.rfind(')');
  for (int i = 0; i < kStartTimeAfterName && at != std::string::npos; ++i)
    at = text.find(' ', at + 1);
  uint64_t start_time = 0;
  if (at != std::string::npos)
    std::from_chars(text.data() + at + 1, text.data() + text.size(), start_time);
  return start_time;
}

ProcessMark make_mark() {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  void* memory = mmap(nullptr, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw ResourceError("the system gives no page of memory");
  if (madvise(memory, page, MADV_WIPEONFORK) != 0) {
    munmap(memory, page);
    throw ResourceError("this kernel cannot wipe memory in forked children (Linux 4.14 can)");
  }
  ProcessMark mark;
  fill_random(mark.value);
  mark.address = reinterpret_cast<uint64_t>(memory);
  std::memcpy(memory, mark.value.data(), mark.value.size());
  return mark;
}

ssize_t read_process(int32_t pid, std::span<const iovec> to, std::span<const iovec> from) {
#if defined(__SANITIZE_THREAD__)
  // Who looks at the bytes afterwards was told by the other process that they are there. The
  // sanitizer does not see such an order and would call each word that it intercepts a race.
  return syscall(SYS_process_vm_readv, pid, to.data(), to.size(), from.data(), from.size(), 0UL);
#else
  return process_vm_readv(pid, to.data(), to.size(), from.data(), from.size(), 0);
#endif
}

}  // namespace

ProcessId this_process() {
  const auto pid = static_cast<int32_t>(getpid());
  return {pid, start_time_of(pid)};
}

bool is_alive(const ProcessId& process) {
  if (process.pid <= 0) return false;
  const int fd = static_cast<int>(syscall(SYS_pidfd_open, process.pid, 0));
  if (fd < 0) return errno != ESRCH && errno != EINVAL;  // not known: nobody is declared dead
  const Descriptor descriptor(fd);
  pollfd ended{fd, POLLIN, 0};
  if (poll(&ended, 1, 0) > 0) return false;
  if (process.start_time == 0) return true;
  const uint64_t start_time = start_time_of(process.pid);
  return start_time == 0 ? poll(&ended, 1, 0) <= 0 : start_time == process.start_time;
}

const ProcessMark& this_process_mark() {
  // Kept for ever: a peer may ask for it until the process ends.
  static std::mutex mutex;
  static ProcessMark mark;
  static unsigned made_in = 0;
  const std::lock_guard lock(mutex);
  if (mark.address == 0 || made_in != fork_generation()) {
    mark = make_mark();
    made_in = fork_generation();
  }
  return mark;
}

std::string ProcessMemory::problem() const {
  std::array<std::byte, ProcessMark::kBytes> found;
  const iovec local{found.data(), found.size()};
  const iovec remote{reinterpret_cast<void*>(mark_.address), found.size()};
  if (read_process(pid_, {&local, 1}, {&remote, 1}) == static_cast<ssize_t>(found.size()))
    return found == mark_.value ? "" : "process " + std::to_string(pid_) + " is another one";
  const int error = errno;
  std::string text = "process_vm_readv of process " + std::to_string(pid_) + " fails (" +
                     std::generic_category().message(error) + ")";
  if (error == EPERM)
    text +=
        ": the process is not dumpable, runs as another user, or ptrace is restricted (sysctl "
        "kernel.yama.ptrace_scope)";
  if (error == ENOSYS) text += ": the kernel or a seccomp filter does not have it";
  return text;
}

Status ProcessMemory::read(std::span<const iovec> local, std::span<const iovec> remote,
                           const ProcessStamp* stamp) const {
  // Stamp and mark are read last, in the same call: the kernel copies in order, and holds on to one
  // memory during a call.
  std::array<iovec, kMaxPieces + 2> to;
  std::array<iovec, kMaxPieces + 2> from;
  std::array<std::byte, ProcessMark::kBytes> found;
  uint64_t stamped = 0;
  if (local.size() > kMaxPieces || remote.size() > kMaxPieces) return Status::kTransportUnavailable;
  auto to_end = std::ranges::copy(local, to.begin()).out;
  auto from_end = std::ranges::copy(remote, from.begin()).out;
  if (stamp != nullptr) {
    *to_end++ = {&stamped, sizeof(stamped)};
    *from_end++ = {reinterpret_cast<void*>(stamp->address), sizeof(stamped)};
  }
  *to_end++ = {found.data(), found.size()};
  *from_end++ = {reinterpret_cast<void*>(mark_.address), found.size()};
  std::size_t wanted = 0;
  for (const iovec& piece : std::span(to.begin(), to_end)) wanted += piece.iov_len;
  const ssize_t n = read_process(pid_, {to.begin(), to_end}, {from.begin(), from_end});
  if (n < 0 && errno == ESRCH) return Status::kPeerDied;
  if (n != static_cast<ssize_t>(wanted)) return Status::kTransportUnavailable;
  if (found != mark_.value) return Status::kPeerDied;
  return stamp == nullptr || stamped == stamp->value ? Status::kOk : Status::kCancelled;
}

}  // namespace inlay::net
