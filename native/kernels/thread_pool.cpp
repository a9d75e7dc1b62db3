#include "thread_pool.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <climits>

namespace inlay::kernels {
namespace {

void pause_processor() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

// Sleeps while *word == expected. May return early.
void sleep_on(std::atomic<uint32_t>& word, uint32_t expected) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT_PRIVATE, expected, nullptr,
          nullptr, 0);
}

void wake_all(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE_PRIVATE, INT_MAX, nullptr,
          nullptr, 0);
}

// The pool is never destroyed: at exit its workers sleep or spin on memory that must stay. In a
// forked child the parent's pool is left behind as it is, its mutex may be held by a thread that
// the child does not have.
std::atomic<ThreadPool*> g_pool{nullptr};
std::mutex g_creation;

void before_fork() { g_creation.lock(); }
void in_parent() { g_creation.unlock(); }
void in_child() {
  g_pool.store(nullptr, std::memory_order_relaxed);
  g_creation.unlock();
}

}  // namespace

ThreadPool& ThreadPool::instance() {
  ThreadPool* pool = g_pool.load(std::memory_order_acquire);
  if (pool != nullptr) return *pool;
  const std::lock_guard lock(g_creation);
  static const int registered = pthread_atfork(before_fork, in_parent, in_child);
  (void)registered;
  pool = g_pool.load(std::memory_order_acquire);
  if (pool == nullptr) {
    pool = new ThreadPool(usable_processors());
    g_pool.store(pool, std::memory_order_release);
  }
  return *pool;
}

ThreadPool::ThreadPool(int num_threads) { start(num_threads); }

ThreadPool::~ThreadPool() { stop(); }

void ThreadPool::set_num_threads(int num_threads) {
  const std::lock_guard lock(turn_);
  if (num_threads == this->num_threads()) return;
  stop();
  start(num_threads);
}

void ThreadPool::start(int num_threads) {
  stopping_.store(false, std::memory_order_relaxed);
  thread_scratch_.resize(static_cast<std::size_t>(num_threads));
  workers_.reserve(static_cast<std::size_t>(num_threads - 1));
  for (int thread = 1; thread < num_threads; ++thread)
    workers_.emplace_back([this, thread] { worker_loop(thread); });
  num_threads_.store(num_threads, std::memory_order_relaxed);
}

void ThreadPool::stop() {
  stopping_.store(true, std::memory_order_relaxed);
  generation_.fetch_add(1, std::memory_order_seq_cst);
  wake_all(generation_);
  for (std::thread& worker : workers_) worker.join();
  workers_.clear();
}

void ThreadPool::draw_items(int thread) {
  for (;;) {
    const int64_t item = next_item_.fetch_add(1, std::memory_order_relaxed);
    if (item >= items_) return;
    function_(context_, item, thread);
  }
}

// A worker announces itself in inside_ before it looks at open_, the caller closes open_ before it
// looks at inside_; both in one total order. So either the worker sees the job closed and leaves
// it alone, or the caller sees the worker and waits for it. A worker that wakes late costs nothing:
// it finds the job closed, or takes part in the next one.
void ThreadPool::run(int64_t items, Function function, void* context) {
  function_ = function;
  context_ = context;
  items_ = items;
  next_item_.store(0, std::memory_order_relaxed);
  open_.store(true, std::memory_order_seq_cst);
  generation_.fetch_add(1, std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst) > 0) wake_all(generation_);
  draw_items(0);
  open_.store(false, std::memory_order_seq_cst);
  // The others are in their last items. After some spinning the processor is offered to them: they
  // may be waiting for this very core.
  for (int spins = 0; inside_.load(std::memory_order_seq_cst) > 0; ++spins) {
    if (spins < 4096)
      pause_processor();
    else
      sched_yield();
  }
}

void ThreadPool::work(int thread) {
  inside_.fetch_add(1, std::memory_order_seq_cst);
  if (open_.load(std::memory_order_seq_cst)) draw_items(thread);
  inside_.fetch_sub(1, std::memory_order_seq_cst);
}

void ThreadPool::worker_loop(int thread) {
  using Clock = std::chrono::steady_clock;
  uint32_t seen = 0;
  while (!stopping_.load(std::memory_order_relaxed)) {
    const auto spin_end = Clock::now() + std::chrono::microseconds(spin_us());
    uint32_t now = generation_.load(std::memory_order_seq_cst);
    while (now == seen) {
      for (int i = 0; i < 32 && now == seen; ++i) {
        pause_processor();
        now = generation_.load(std::memory_order_acquire);
      }
      if (now == seen && Clock::now() >= spin_end) {
        sleepers_.fetch_add(1, std::memory_order_seq_cst);
        sleep_on(generation_, seen);
        sleepers_.fetch_sub(1, std::memory_order_seq_cst);
        now = generation_.load(std::memory_order_seq_cst);
      }
    }
    seen = now;
    work(thread);
  }
}

}  // namespace inlay::kernels
