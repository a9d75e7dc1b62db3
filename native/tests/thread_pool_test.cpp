// The pool on one node and several, under several callers, resizing, sleeping workers and fork.
#include "../kernels/thread_pool.h"

#include <sched.h>
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

using inlay::kernels::affinity_mask;
using inlay::kernels::choose_topology;
using inlay::kernels::ThreadPool;
using inlay::kernels::Topology;

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

// Nodes that all have every processor of this machine.
Topology fake_nodes(std::size_t count) {
  return choose_topology(std::vector(count, affinity_mask()));
}

void test_items_on_nodes() {
  for (const std::size_t nodes : {1, 2, 3})
    for (const int threads : {1, 2, 5}) {
      ThreadPool pool(threads, fake_nodes(nodes));
      for (const int64_t items : {0, 1, 2, 3, 7, 1000})
        for (int repeat = 0; repeat < 20; ++repeat) run_once(pool, items);
    }
}

// Every item of every shard once, whatever the numbers of shards, nodes and threads.
void test_shards() {
  for (const std::size_t nodes : {1, 2, 3})
    for (const int threads : {1, 2, 5}) {
      ThreadPool pool(threads, fake_nodes(nodes));
      for (const std::vector<int64_t>& items :
           std::vector<std::vector<int64_t>>{{}, {0}, {1}, {5, 3}, {0, 0, 70}, {9, 0, 4, 50, 1}}) {
        std::vector<std::vector<int>> done;
        for (const int64_t count : items) done.emplace_back(static_cast<std::size_t>(count), 0);
        ThreadPool::Session session(pool);
        CHECK(session.num_nodes() == static_cast<int>(nodes));
        session.parallel_for_nodes(items, [&](int shard, int64_t item, int thread) {
          CHECK(thread >= 0 && thread < threads);
          ++done[static_cast<std::size_t>(shard)][static_cast<std::size_t>(item)];
        });
        for (const std::vector<int>& shard : done)
          for (const int times : shard) CHECK(times == 1);
      }
    }
}

// Two threads on two nodes, each held in its first item until the other has one too: each begins at
// home. Then one stays in its item until all others are done: they were taken from its node.
void test_home_first_then_stealing() {
  ThreadPool pool(2, fake_nodes(2));
  ThreadPool::Session session(pool);
  for (int repeat = 0; repeat < 20; ++repeat) {
    std::atomic<int> begun{0}, others{0};
    const std::vector<int64_t> items = {8, 8};
    session.parallel_for_nodes(items, [&](int shard, int64_t item, int thread) {
      if (item == 0 && shard == thread) {
        ++begun;
        while (begun < 2) std::this_thread::yield();
        while (thread == 1 && others < 14) std::this_thread::yield();
      } else {
        CHECK(begun == 2);
        CHECK(thread == 0);
        ++others;
      }
    });
    CHECK(others == 14);
  }
}

// A thread may run on its node's processors alone, the caller where it likes.
void test_workers_stay_on_their_node() {
  const std::vector<int> mask = affinity_mask();
  if (mask.size() < 2) return;
  const std::vector<std::vector<int>> nodes = {{mask[0]}, {mask[1]}};
  ThreadPool pool(4, choose_topology(nodes));
  ThreadPool::Session session(pool);
  std::vector<int> seen(4, 0);
  std::atomic<int> inside{0};
  session.parallel_for(4, [&](int64_t, int thread) {
    ++inside;
    while (inside < 4) std::this_thread::yield();  // so that every thread has one item
    ++seen[static_cast<std::size_t>(thread)];
    if (thread > 0) CHECK(affinity_mask() == nodes[static_cast<std::size_t>(thread) / 2]);
    if (thread == 0) CHECK(affinity_mask() == mask);
  });
  CHECK(seen == std::vector<int>(4, 1));
  // A single node with part of the processors is kept to as well.
  CHECK(choose_topology({{mask[1]}}).pinned);
  CHECK(!choose_topology({mask}).pinned);
}

void test_changing_the_topology() {
  ThreadPool pool(3);
  for (const std::size_t nodes : {2, 3, 1}) {
    pool.set_topology(fake_nodes(nodes));
    CHECK(pool.topology().nodes.size() == nodes);
    CHECK(pool.num_threads() == pool.topology().usable_cores);
    run_once(pool, 100);
    pool.set_num_threads(5);
    CHECK(pool.num_threads() == 5);
    run_once(pool, 100);
  }
}

void test_memory_nodes() {
  ThreadPool whole(2, fake_nodes(1));
  CHECK(ThreadPool::Session(whole).memory_node(3) == -1);
  Topology two = fake_nodes(2);
  two.nodes[0].memory_node = 4;
  two.nodes[1].memory_node = 7;
  ThreadPool pool(2, two);
  ThreadPool::Session session(pool);
  for (int shard = 0; shard < 5; ++shard)
    CHECK(session.memory_node(shard) == (shard % 2 == 0 ? 4 : 7));
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
  test_items_on_nodes();
  test_shards();
  test_home_first_then_stealing();
  test_workers_stay_on_their_node();
  test_changing_the_topology();
  test_memory_nodes();
  if (kCanFork) test_fork();
}
