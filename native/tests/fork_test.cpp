// A process that forks while another thread uses the library for the first time: the child has no
// thread that would finish what that one had begun.
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "../kernels/isa.h"
#include "../kernels/thread_pool.h"
#include "check.h"

namespace {

using namespace inlay::kernels;

// A forked child may not start threads under the thread sanitizer, and waits for ever for a lock of
// the address sanitizer's allocator that another thread held at the fork.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr bool kCanFork = false;
#else
constexpr bool kCanFork = true;
#endif

bool succeeded(pid_t child) {
  int status = 0;
  return waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

void use_library() {
  CHECK(!available_isas().empty());
  CHECK(selected().isa != nullptr);
  CHECK(ThreadPool::instance().num_threads() >= 1);
}

// In a process that has not used the library: forks so long after a thread has begun to use it.
void fork_after(std::chrono::microseconds delay) {
  const auto begin = std::chrono::steady_clock::now();
  std::thread first([] { use_library(); });
  while (std::chrono::steady_clock::now() < begin + delay) {
  }
  const pid_t child = fork();
  if (child == 0) {
    alarm(10);
    use_library();
    _exit(0);
  }
  CHECK(succeeded(child));
  first.join();
}

}  // namespace

int main() {
  if (!kCanFork) return 0;
  for (int delay = 0; delay < 400; delay += 2) {
    const pid_t fresh = fork();
    if (fresh == 0) {
      fork_after(std::chrono::microseconds(delay));
      _exit(0);
    }
    CHECK(succeeded(fresh));
  }
}
