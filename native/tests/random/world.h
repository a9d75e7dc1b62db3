// What all processes of a random run share: the memory of the targets, which the test looks at
// directly, also when its owner was killed, and a table of what arrived.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>

#include <array>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "../../transfer/segment.h"
#include "report.h"

namespace random_test {

using inlay::transfer::Access;
using inlay::transfer::Allocation;
using inlay::transfer::Clock;

constexpr int kWorkers = 3;
constexpr int kTargets = 3;
constexpr int kHome = kTargets - 1;  // lives in the process of the test

// Each worker has a part of each segment for itself.
constexpr uint64_t kMostBytes = uint64_t{4} << 20;  // of one transfer
constexpr uint64_t kPlotBytes = kMostBytes + (64 << 10);
constexpr uint64_t kSegmentBytes = kWorkers * kPlotBytes;
constexpr uint64_t kGuardBytes = 64 << 10;  // around memory that is not offered as its own file

// Segments of each target: allocated, so that others map it; registered; a file.
enum class Kind : uint8_t { kShared, kForeign, kDisk };
constexpr std::array kKinds = {Kind::kShared, Kind::kForeign, Kind::kDisk};
inline const char* name_of(Kind kind) {
  constexpr std::array kNames = {"shared", "foreign", "disk"};
  return kNames[static_cast<std::size_t>(kind)];
}

inline Clock::time_point in_s(double seconds) {
  return Clock::now() +
         std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

// Each message and notification has a place in a table.
enum class Arrived : uint8_t {
  kNothing,
  kWhole,
  kDamaged,
  kTwice,
  kForgotten,  // it may come or not
  kUnwanted,   // it must not come
};
constexpr uint32_t kMaxMessages = 1 << 20;

struct Arena {
  Allocation shared = inlay::transfer::allocate_memory(kSegmentBytes, Access::kWrite);
  Allocation foreign =
      inlay::transfer::allocate_memory(kSegmentBytes + 2 * kGuardBytes, Access::kWrite);
  // An engine's descriptors are closed in forked children; these are not.
  const int shared_file = fcntl(shared.memory->get(), F_DUPFD_CLOEXEC, 0);
  const int foreign_file = fcntl(foreign.memory->get(), F_DUPFD_CLOEXEC, 0);
  std::string file;

  Arena() = default;
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  ~Arena() {
    close(shared_file);
    close(foreign_file);
  }

  std::byte* memory(Kind kind) const {
    return kind == Kind::kShared ? shared.bytes.get() : foreign.bytes.get() + kGuardBytes;
  }
  // Past the mapping: that an engine writes there only afterwards is an order by way of another
  // process, of which the thread sanitizer knows nothing.
  std::vector<std::byte> read(Kind kind, uint64_t offset, uint64_t bytes) const {
    std::vector<std::byte> found(bytes);
    const bool is_shared = kind == Kind::kShared;
    const uint64_t at = offset + (is_shared ? 0 : kGuardBytes);
    EXPECT(pread(is_shared ? shared_file : foreign_file, found.data(), bytes,
                 static_cast<off_t>(at)) == static_cast<ssize_t>(bytes),
           "memory that cannot be read");
    return found;
  }
  bool guards_are_zero() const {
    const std::vector<std::byte> zeros(kGuardBytes);
    const std::byte* all = foreign.bytes.get();
    return std::memcmp(all, zeros.data(), kGuardBytes) == 0 &&
           std::memcmp(all + kGuardBytes + kSegmentBytes, zeros.data(), kGuardBytes) == 0;
  }
};

class World {
 public:
  World() {
    directory_ = std::filesystem::temp_directory_path() / "inlay-random-XXXXXX";
    EXPECT(mkdtemp(directory_.data()) != nullptr, directory_);
    for (int i = 0; i < kTargets; ++i)
      arenas[static_cast<std::size_t>(i)].file = directory_ + "/target-" + std::to_string(i);
    void* memory = mmap(nullptr, kMaxMessages * sizeof(*arrived_), PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    EXPECT(memory != MAP_FAILED, "a table of messages");
    arrived_ = static_cast<std::atomic<Arrived>*>(memory);
  }
  World(const World&) = delete;
  World& operator=(const World&) = delete;
  ~World() {
    munmap(arrived_, kMaxMessages * sizeof(*arrived_));
    std::filesystem::remove_all(directory_);
  }

  const Arena& arena(int target) const { return arenas[static_cast<std::size_t>(target)]; }
  std::atomic<Arrived>& arrived(uint32_t message) const {
    EXPECT(message < kMaxMessages, "more messages than the table has places");
    return arrived_[message];
  }

  std::array<Arena, kTargets> arenas;

 private:
  std::string directory_;
  std::atomic<Arrived>* arrived_;
};

// The first byte that differs from both; `bytes` when there is none. The thread sanitizer would
// take most of a run for it; what is compared here is written under its eyes before and after.
__attribute__((no_sanitize("thread"))) inline uint64_t first_of_neither(const std::byte* found,
                                                                        const std::byte* one,
                                                                        const std::byte* other,
                                                                        uint64_t bytes) {
  uint64_t at = 0;
  while (at < bytes) {
    uint64_t words[3]{1, 0, 0};
    if (at + 8 <= bytes) {
      __builtin_memcpy(&words[0], found + at, 8);
      __builtin_memcpy(&words[1], one + at, 8);
      __builtin_memcpy(&words[2], other + at, 8);
    }
    if (words[0] == words[1] || words[0] == words[2])
      at += 8;
    else if (found[at] == one[at] || found[at] == other[at])
      ++at;
    else
      break;
  }
  return at;
}

}  // namespace random_test
