// Other processes of this host: who they are, whether they live, and what is in their memory.
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "../core/status.h"
#include "socket.h"

namespace inlay::net {

// A process number is used again; with the time of its start it names one process for good.
struct ProcessId {
  int32_t pid = 0;
  uint64_t start_time = 0;  // in clock ticks since the host's start

  bool operator==(const ProcessId&) const = default;
};

ProcessId this_process();
// False for one that is gone, or whose threads have all ended. A start time of 0 fits any.
bool is_alive(const ProcessId& process);

// Random bytes at an address that forked children do not inherit: who reads them there has read the
// memory of this very process, not that of a child, or of what it became by exec.
struct ProcessMark {
  static constexpr std::size_t kBytes = 16;

  uint64_t address = 0;
  std::array<std::byte, kBytes> value{};
};

// This process's, made at first use. Throws ResourceError.
const ProcessMark& this_process_mark();

// A word that its process changes when what lies elsewhere in its memory is no longer what it was.
struct ProcessStamp {
  uint64_t address = 0;
  uint64_t value = 0;
};

// Reading another process's memory, without its help.
class ProcessMemory {
 public:
  ProcessMemory(pid_t pid, const ProcessMark& mark) : pid_(pid), mark_(mark) {}

  // Why nothing can be read; empty when it works.
  std::string problem() const;

  static constexpr std::size_t kMaxPieces = 256;

  // Copies `remote` to `local`: at most kMaxPieces each, as many bytes.
  //   kOk                    these are the bytes of that process
  //   kPeerDied              it is gone; what lies in `local` means nothing
  //   kTransportUnavailable  the system refuses, or the memory is not there (any more)
  // With a stamp also, that was read after the bytes:
  //   kCancelled             it has another value; what lies in `local` means nothing
  Status read(std::span<const iovec> local, std::span<const iovec> remote,
              const ProcessStamp* stamp = nullptr) const;

 private:
  pid_t pid_;
  ProcessMark mark_;
};

}  // namespace inlay::net
