#include "shared_file.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <system_error>

#include "../core/errors.h"

namespace inlay::transfer {

namespace {

const char* kShrinkable = "it is neither sealed memory nor a file of tmpfs of this user alone";

bool is_locked(const net::Descriptor& file) {
  const net::Descriptor other = reopened(file, false);
  return other.valid() && flock(other.get(), LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
}

[[noreturn]] void fail(const char* what) {
  throw ResourceError(std::string("file: ") + what + ": " + std::generic_category().message(errno));
}

}  // namespace

net::Descriptor reopened(const net::Descriptor& file, bool writable) {
  const std::string path = "/proc/self/fd/" + std::to_string(file.get());
  return net::Descriptor(open(path.c_str(), (writable ? O_RDWR : O_RDONLY) | O_CLOEXEC));
}

const char* unsafe_to_map(const net::Descriptor& memory, uint64_t size) {
  struct stat about{};
  if (fstat(memory.get(), &about) != 0) return "it cannot be looked at";
  if (static_cast<uint64_t>(about.st_size) < size) return "it is smaller than the segment";
  const int seals = fcntl(memory.get(), F_GET_SEALS);
  if (seals >= 0 && (seals & F_SEAL_SHRINK) != 0) return nullptr;
  struct statfs system{};
  if (fstatfs(memory.get(), &system) != 0 || system.f_type != TMPFS_MAGIC ||
      !S_ISREG(about.st_mode) || about.st_uid != geteuid() || (about.st_mode & 0077) != 0)
    return kShrinkable;
  return is_locked(memory) ? nullptr : "its owner holds no lock (flock) on it";
}

Allocation map_shared_file(const net::Descriptor& file, Access access) {
  struct stat about{};
  if (fstat(file.get(), &about) != 0) fail("cannot be looked at");
  if (about.st_size <= 0) throw ArgumentError("file: has no bytes: give it its size first");
  const auto size = static_cast<uint64_t>(about.st_size);
  if (const char* problem = unsafe_to_map(file, size))
    throw ArgumentError(std::string("file: peers would not map it: ") + problem);
  auto shared = std::make_shared<net::Descriptor>(reopened(file, access == Access::kWrite));
  if (!shared->valid()) fail("cannot be opened again");
  // Of memory that tmpfs has no room for a touch would end the process.
  if (const int error = posix_fallocate(file.get(), 0, about.st_size); error != 0) {
    errno = error;
    fail("tmpfs has no room for all of it");
  }
  void* base = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (base == MAP_FAILED) fail("cannot be mapped");
  madvise(base, size, MADV_HUGEPAGE);
  madvise(base, size, MADV_POPULATE_WRITE);
  return {{static_cast<std::byte*>(base), [size](std::byte* at) { munmap(at, size); }},
          std::move(shared)};
}

}  // namespace inlay::transfer
