// The pool under several callers, resizing, sleeping workers and fork.
#include "../kernels/thread_pool.h"

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <numeric>
#include <thread>
#include <vector>

#include "check.h"

// A forked child may not start threads under the thread sanitizer.
#if defined(__SANITIZE_THREAD__)
constexpr bool kCanFork = false;
#else
constexpr bool kCanFork = true;
#endif

namespace {

using inlay::kernels::ThreadPool;

// Every item once, by a thread of the pool.
void run_once(ThreadPool& pool, int64_t items) {
  std::vector<int> done(static_cast<std::size_t>(items), 0);
  ThreadPool::Session session(pool);
  const int threads = session.num_threads();
  session.parallel_for(items, [&](int64_t item, int thread) {
    CHECK(thread >= 0 && thread < threads);
    ++done[static_cast<std::size_t>(item)];
  });
  CHECK(std::accumulate(done.begin(), done.end(), int64_t{0}) == items);
}

void test_items() {
  for (const int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    for (const int64_t items : {0, 1, 2, 3, 7, 1000})
      for (int repeat = 0; repeat < 50; ++repeat) run_once(pool, items);
  }
}

void test_several_callers() {
  ThreadPool pool(3);
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 4; ++caller)
    callers.emplace_back([&] {
      for (int repeat = 0; repeat < 200; ++repeat) run_once(pool, 40);
    });
  callers.emplace_back([&] {
    for (int repeat = 0; repeat < 20; ++repeat) pool.set_num_threads(1 + repeat % 4);
  });
  for (std::thread& caller : callers) caller.join();
}

void test_sleepers_wake() {
  ThreadPool pool(3);
  pool.set_spin_us(0);
  for (int repeat = 0; repeat < 20; ++repeat) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    run_once(pool, 100);
  }
}

void test_scratch() {
  ThreadPool pool(2);
  ThreadPool::Session session(pool);
  float* shared = session.shared_scratch<float>(1000);
  session.prepare_thread_scratch(500);
  session.parallel_for(1000, [&](int64_t item, int thread) {
    session.thread_scratch(thread)[item % 500] = 1;
    shared[item] = static_cast<float>(item);
  });
  for (int i = 0; i < 1000; ++i) CHECK(shared[i] == static_cast<float>(i));
}

void test_fork() {
  run_once(ThreadPool::instance(), 100);
  const pid_t child = fork();
  CHECK(child >= 0);
  run_once(ThreadPool::instance(), 100);
  if (child == 0) _exit(0);
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

}  // namespace

int main() {
  test_items();
  test_several_callers();
  test_sleepers_wake();
  test_scratch();
  if (kCanFork) test_fork();
}
