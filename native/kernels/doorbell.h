// What idle threads wait on: they spin for a bounded time, then sleep until the next ring.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace inlay::kernels {

class Doorbell {
 public:
  using Clock = std::chrono::steady_clock;

  // How often it has rung. Sequentially consistent, as ring() is.
  uint32_t rings() const { return rings_.load(std::memory_order_seq_cst); }

  // Wakes all who wait; costs one atomic addition where nobody sleeps.
  void ring() {
    rings_.fetch_add(1, std::memory_order_seq_cst);
    if (sleepers_.load(std::memory_order_seq_cst) > 0) wake_sleepers();
  }

  // Returns rings() once it differs from `seen`, or `seen` when the time `end` comes first.
  uint32_t wait(uint32_t seen, int spin_us, Clock::time_point end = Clock::time_point::max());

 private:
  void wake_sleepers();
  void sleep(uint32_t seen, Clock::time_point end);

  std::atomic<uint32_t> rings_{0};
  std::atomic<int> sleepers_{0};
};

// A hint to the processor inside a loop that waits for another thread.
inline void pause_processor() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

}  // namespace inlay::kernels
