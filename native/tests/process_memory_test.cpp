// Bytes of another process are that process's, or the read says so.
#include "../net/process_memory.h"

#include <linux/capability.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <cstring>
#include <vector>

#include "check.h"
#include "child.h"

namespace {

using inlay::Status;
using inlay::net::is_alive;
using inlay::net::ProcessMark;
using inlay::net::ProcessMemory;

constexpr std::size_t kSize = 300000;

struct Shared {
  ProcessMark mark;
  std::byte* data;
};

Shared* shared_page() {
  void* memory = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  CHECK(memory != MAP_FAILED);
  return static_cast<Shared*>(memory);
}

Status read_all(const ProcessMemory& memory, std::byte* to, std::byte* from, std::size_t bytes) {
  const iovec local[] = {{to, 1000}, {to + 1000, bytes - 1000}};
  const iovec remote[] = {{from, 1000}, {from + 1000, bytes - 1000}};
  return memory.read(local, remote);
}

void serve(Child& parent, Shared* shared) {
  auto* data = new std::vector<std::byte>(kSize, std::byte{0x3c});
  *shared = {inlay::net::this_process_mark(), data->data()};
  parent.tell();
  parent.hear();
  prctl(PR_SET_DUMPABLE, 0);
  parent.tell();
  parent.hear();
}

// Who may trace everything reads everything.
void drop_tracing() {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[2]{};
  CHECK(syscall(SYS_capget, &header, data) == 0);
  for (auto* word : {&data[0].effective, &data[0].permitted}) *word &= ~(1u << CAP_SYS_PTRACE);
  CHECK(syscall(SYS_capset, &header, data) == 0);
}

}  // namespace

int main() {
  drop_tracing();
  Shared* shared = shared_page();
  const ProcessMark own = inlay::net::this_process_mark();
  Child child([&](Child& parent) { serve(parent, shared); });
  child.hear();
  CHECK(std::memcmp(&own, &shared->mark, sizeof(own)) != 0);

  const inlay::net::ProcessId self = inlay::net::this_process();
  CHECK(self.start_time > 0 && is_alive(self));
  CHECK(!is_alive({self.pid, self.start_time + 1}) && is_alive({self.pid, 0}));

  std::vector<std::byte> got(kSize);
  ProcessMemory memory(child.pid(), shared->mark);
  CHECK(memory.problem().empty());
  CHECK(read_all(memory, got.data(), shared->data, kSize) == Status::kOk);
  CHECK(got == std::vector<std::byte>(kSize, std::byte{0x3c}));
  // Not there: a page that nobody maps.
  CHECK(read_all(memory, got.data(), nullptr, kSize) == Status::kTransportUnavailable);
  // A process with another mark there: this one's, in which the child's data is not what we want.
  ProcessMark other = shared->mark;
  other.value[0] ^= std::byte{1};
  ProcessMemory stranger(child.pid(), other);
  CHECK(!stranger.problem().empty());
  CHECK(read_all(stranger, got.data(), shared->data, kSize) == Status::kPeerDied);

  child.tell();
  child.hear();
  CHECK(!memory.problem().empty());
  CHECK(read_all(memory, got.data(), shared->data, kSize) == Status::kTransportUnavailable);
  const inlay::net::ProcessId id{child.pid(), 0};
  CHECK(is_alive(id));
  ::kill(child.pid(), SIGKILL);
  while (is_alive(id)) usleep(1000);  // a zombie is not
  CHECK(read_all(memory, got.data(), shared->data, kSize) == Status::kPeerDied);
  child.kill(SIGKILL);
  CHECK(!is_alive(id) && !is_alive({0, 0}));

  // A child of ours has a copy of our memory, but not of the mark.
  auto* data = new std::vector<std::byte>(kSize, std::byte{0x77});
  Child copy([&](Child& parent) { parent.hear(); });
  ProcessMemory of_copy(copy.pid(), own);
  CHECK(read_all(of_copy, got.data(), data->data(), kSize) == Status::kPeerDied);
  copy.tell();
  delete data;
}
