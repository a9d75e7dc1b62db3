#include "mappings.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <memory>
#include <optional>

namespace inlay {

namespace {

constexpr char kList[] = "/proc/self/maps";

// A question about one mapping, which Linux answers from 6.11 on in about a microsecond; to read
// the list takes some 60 with the mappings of a Python process.
struct MappingQuery {
  uint64_t size = sizeof(MappingQuery);
  uint64_t query_flags = 0;  // the mapping that holds the address, or none
  uint64_t address = 0;
  uint64_t begin = 0;
  uint64_t end = 0;
  uint64_t flags = 0;
  uint64_t unused[7] = {};  // of names, files and pages
};
static_assert(sizeof(MappingQuery) == 104);  // part of the number of the question
constexpr unsigned long kMappingQuery = _IOWR('f', 17, MappingQuery);
constexpr uint64_t kReadable = 1;
constexpr uint64_t kWritable = 2;

// The list, open for this thread: to open it costs as much as twenty questions. A forked child has
// the list of its parent's mappings, and opens its own.
class OpenList {
 public:
  OpenList() = default;
  OpenList(const OpenList&) = delete;
  OpenList& operator=(const OpenList&) = delete;
  ~OpenList() { forget(); }

  // Below 0: there is none.
  int get() {
    if (const pid_t here = getpid(); file_ < 0 || process_ != here) {
      forget();
      file_ = open(kList, O_RDONLY | O_CLOEXEC);
      process_ = here;
    }
    return file_;
  }

 private:
  void forget() {
    if (file_ >= 0) close(file_);
    file_ = -1;
  }

  int file_ = -1;
  pid_t process_ = 0;
};

// None: this kernel answers no such questions.
std::optional<Protection> asked(uintptr_t address, uint64_t length) {
  thread_local OpenList list;
  Protection found{true, true};
  for (uint64_t next = address; next - address < length;) {
    MappingQuery query;
    query.address = next;
    if (ioctl(list.get(), kMappingQuery, &query) != 0) {
      if (errno != ENOENT) return std::nullopt;
      return Protection{false, false};
    }
    found.readable &= (query.flags & kReadable) != 0;
    found.writable &= (query.flags & kWritable) != 0;
    next = query.end;
  }
  return found;
}

Protection listed(uintptr_t address, uint64_t length) {
  const std::unique_ptr<FILE, int (*)(FILE*)> maps(std::fopen(kList, "re"), std::fclose);
  if (maps == nullptr) return {true, true};
  Protection all{true, true};
  uint64_t next = address;  // the first byte that no line was about yet
  char line[512];           // a longer line goes on in the next read, which starts with no range
  while (std::fgets(line, sizeof(line), maps.get()) != nullptr) {
    uint64_t begin = 0;
    uint64_t end = 0;
    char mode[5];
    if (std::sscanf(line, "%" SCNx64 "-%" SCNx64 " %4s", &begin, &end, mode) != 3) continue;
    if (end <= next) continue;
    if (begin > next) break;
    all.readable &= mode[0] == 'r';
    all.writable &= mode[1] == 'w';
    next = end;
    if (next - address >= length) return all;
  }
  return {false, false};
}

}  // namespace

Protection protection_of(uintptr_t address, uint64_t length) {
  const std::optional<Protection> found = asked(address, length);
  return found ? *found : listed(address, length);
}

}  // namespace inlay
