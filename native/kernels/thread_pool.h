// The process's one pool of compute threads.
//
// The calling thread takes part. Work is a number of items that threads draw one by one, so a
// thread that the OS holds up delays only its current item. Workers spin for a bounded time after
// the last call, then sleep until the next. Callers from several threads take turns.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

#include "aligned_buffer.h"

namespace inlay::kernels {

// Processors that this process may use: affinity, physical cores only, cgroup CPU quota.
int usable_processors();

class ThreadPool {
 public:
  // The process's pool. A forked child gets a fresh one, because threads do not survive fork.
  static ThreadPool& instance();

  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  // Threads that take part in a call, the caller included.
  int num_threads() const { return num_threads_.load(std::memory_order_relaxed); }
  void set_num_threads(int num_threads);

  // How long a worker spins for more work before it sleeps.
  int spin_us() const { return spin_us_.load(std::memory_order_relaxed); }
  void set_spin_us(int spin_us) { spin_us_.store(spin_us, std::memory_order_relaxed); }

  // One caller's turn: several parallel loops and the scratch memory between them.
  class Session {
   public:
    explicit Session(ThreadPool& pool) : pool_(pool), lock_(pool.turn_) {}

    int num_threads() const { return pool_.num_threads(); }

    // Calls body(item, thread) for every item in [0, items); returns when all are done. `thread` is
    // in [0, num_threads()). The body must not throw.
    template <typename Body>
    void parallel_for(int64_t items, Body&& body) {
      if (items <= 1 || num_threads() == 1) {
        for (int64_t i = 0; i < items; ++i) body(i, 0);
        return;
      }
      using Plain = std::remove_reference_t<Body>;
      pool_.run(
          items,
          [](void* context, int64_t item, int thread) {
            (*static_cast<Plain*>(context))(item, thread);
          },
          const_cast<std::remove_const_t<Plain>*>(&body));
    }

    // Memory shared by all threads, kept for the next call; contents undefined.
    template <typename T>
    T* shared_scratch(int64_t count) {
      pool_.shared_scratch_.reserve(static_cast<std::size_t>(count) * sizeof(T));
      return reinterpret_cast<T*>(pool_.shared_scratch_.data());
    }

    // Memory of one thread; prepare before the loop, get inside it.
    void prepare_thread_scratch(int64_t floats) {
      for (AlignedBuffer& scratch : pool_.thread_scratch_)
        scratch.reserve(static_cast<std::size_t>(floats) * sizeof(float));
    }
    float* thread_scratch(int thread) {
      return reinterpret_cast<float*>(
          pool_.thread_scratch_[static_cast<std::size_t>(thread)].data());
    }

   private:
    ThreadPool& pool_;
    std::unique_lock<std::mutex> lock_;
  };

 private:
  using Function = void (*)(void* context, int64_t item, int thread);

  void run(int64_t items, Function function, void* context);
  void work(int thread);
  void draw_items(int thread);
  void worker_loop(int thread);
  void start(int num_threads);
  void stop();

  std::mutex turn_;  // held by the session
  std::vector<std::thread> workers_;
  std::vector<AlignedBuffer> thread_scratch_;
  AlignedBuffer shared_scratch_;
  std::atomic<int> num_threads_{1};
  std::atomic<int> spin_us_{100};

  // The current job. Written by the caller while no worker is inside (see run()).
  Function function_ = nullptr;
  void* context_ = nullptr;
  int64_t items_ = 0;
  alignas(64) std::atomic<int64_t> next_item_{0};
  alignas(64) std::atomic<bool> open_{false};        // workers may enter the current job
  std::atomic<int> inside_{0};                       // workers that may be touching the job
  alignas(64) std::atomic<uint32_t> generation_{0};  // counts jobs; workers sleep on it
  std::atomic<int> sleepers_{0};
  std::atomic<bool> stopping_{false};
};

}  // namespace inlay::kernels
