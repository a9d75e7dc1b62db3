#include "doorbell.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <ctime>

namespace inlay::kernels {

uint32_t Doorbell::wait(uint32_t seen, int spin_us, Clock::time_point end) {
  uint32_t now = rings();
  if (now != seen) return now;
  const Clock::time_point spin_end = Clock::now() + std::chrono::microseconds(spin_us);
  for (;;) {
    for (int i = 0; i < 32; ++i) {
      pause_processor();
      now = rings_.load(std::memory_order_acquire);
      if (now != seen) return now;
    }
    const Clock::time_point time = Clock::now();
    if (time >= end) return seen;
    if (time < spin_end) continue;
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    sleep(seen, end);
    sleepers_.fetch_sub(1, std::memory_order_seq_cst);
    now = rings();
    if (now != seen) return now;
  }
}

// Sleeps while rings_ == seen. May return early.
void Doorbell::sleep(uint32_t seen, Clock::time_point end) {
  timespec rest{};
  if (end != Clock::time_point::max()) {
    using std::chrono::nanoseconds;
    const nanoseconds left = std::max(nanoseconds(0), nanoseconds(end - Clock::now()));
    rest = {static_cast<time_t>(left.count() / 1000000000), left.count() % 1000000000};
  }
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&rings_), FUTEX_WAIT_PRIVATE, seen,
          end == Clock::time_point::max() ? nullptr : &rest, nullptr, 0);
}

void Doorbell::wake_sleepers() {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&rings_), FUTEX_WAKE_PRIVATE, INT_MAX, nullptr,
          nullptr, 0);
}

}  // namespace inlay::kernels
