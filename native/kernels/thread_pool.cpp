#include "thread_pool.h"

#include <sched.h>

#include <utility>

#include "../core/start_thread.h"
#include "per_process.h"

namespace inlay::kernels {
namespace {

// Best effort: a thread that may not be bound works all the same, only further from its memory.
void keep_on(const std::vector<int>& processors) {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  for (const int processor : processors) CPU_SET(static_cast<std::size_t>(processor), &mask);
  (void)sched_setaffinity(0, sizeof mask, &mask);
}

}  // namespace

ThreadPool& ThreadPool::instance() {
  return PerProcess<ThreadPool>::get([] {
    Topology topology = read_topology();
    const int num_threads = topology.usable_cores;
    return new ThreadPool(num_threads, std::move(topology));
  });
}

ThreadPool::ThreadPool(int num_threads, Topology topology) : topology_(std::move(topology)) {
  start(num_threads);
}

ThreadPool::~ThreadPool() { stop(); }

void ThreadPool::set_num_threads(int num_threads) {
  const std::lock_guard lock(turn_);
  if (num_threads != this->num_threads()) restart(num_threads, topology_);
}

Topology ThreadPool::topology() {
  const std::lock_guard lock(turn_);
  return topology_;
}

void ThreadPool::set_topology(Topology topology) {
  const std::lock_guard lock(turn_);
  const int num_threads = topology.usable_cores;
  restart(num_threads, std::move(topology));
}

void ThreadPool::restart(int num_threads, Topology topology) {
  const int threads_before = this->num_threads();
  stop();
  std::swap(topology_, topology);
  try {
    start(num_threads);
  } catch (...) {
    std::swap(topology_, topology);
    try {
      start(threads_before);
    } catch (...) {
      start(1);
    }
    throw;
  }
}

void ThreadPool::start(int num_threads) {
  stopping_.store(false, std::memory_order_relaxed);
  node_of_thread_.clear();
  first_thread_.assign(1, 0);
  thread_scratch_.clear();
  const std::vector<int> spread = topology_.spread_threads(num_threads);
  for (std::size_t n = 0; n < spread.size(); ++n) {
    first_thread_.push_back(first_thread_.back() + spread[n]);
    for (int i = 0; i < spread[n]; ++i) {
      node_of_thread_.push_back(static_cast<int>(n));
      thread_scratch_.emplace_back(0, topology_.pinned ? topology_.nodes[n].memory_node : -1);
    }
  }
  make_queues(topology_.nodes.size());
  workers_.reserve(static_cast<std::size_t>(num_threads - 1));
  try {
    for (int thread = 1; thread < num_threads; ++thread)
      workers_.push_back(start_thread([this, thread] { worker_loop(thread); }));
  } catch (...) {
    stop();
    throw;
  }
  num_threads_.store(num_threads, std::memory_order_relaxed);
}

void ThreadPool::stop() {
  stopping_.store(true, std::memory_order_relaxed);
  jobs_.ring();
  for (std::thread& worker : workers_) worker.join();
  workers_.clear();
}

void ThreadPool::make_queues(std::size_t count) {
  if (count <= queues_made_) return;
  queues_ = std::make_unique<Queue[]>(count);
  queues_made_ = count;
}

void ThreadPool::draw_items(int thread) {
  const int nodes = static_cast<int>(topology_.nodes.size());
  const int home = node_of_thread_[static_cast<std::size_t>(thread)];
  for (int distance = 0; distance < nodes; ++distance) {
    for (int shard = (home + distance) % nodes; shard < num_queues_; shard += nodes) {
      Queue& queue = queues_[static_cast<std::size_t>(shard)];
      // Looked at before it is counted up: the others' line is not fetched for writing in vain.
      while (queue.next.load(std::memory_order_relaxed) < queue.end) {
        const int64_t item = queue.next.fetch_add(1, std::memory_order_relaxed);
        if (item >= queue.end) break;
        function_(context_, shard, item, thread);
      }
    }
  }
}

void ThreadPool::run(int64_t items, Function function, void* context) {
  const int nodes = static_cast<int>(topology_.nodes.size());
  for (int node = 0; node < nodes; ++node) {
    Queue& queue = queues_[static_cast<std::size_t>(node)];
    queue.next.store(first_item(node, items), std::memory_order_relaxed);
    queue.end = first_item(node + 1, items);
  }
  run_job(nodes, function, context);
}

void ThreadPool::run(std::span<const int64_t> items_per_shard, Function function, void* context) {
  if (num_threads() == 1) {
    for (std::size_t shard = 0; shard < items_per_shard.size(); ++shard)
      for (int64_t item = 0; item < items_per_shard[shard]; ++item)
        function(context, static_cast<int>(shard), item, 0);
    return;
  }
  make_queues(items_per_shard.size());
  for (std::size_t shard = 0; shard < items_per_shard.size(); ++shard) {
    queues_[shard].next.store(0, std::memory_order_relaxed);
    queues_[shard].end = items_per_shard[shard];
  }
  run_job(static_cast<int>(items_per_shard.size()), function, context);
}

// A worker announces itself in inside_ before it looks at open_, the caller closes open_ before it
// looks at inside_; both in one total order. So either the worker sees the job closed and leaves
// it alone, or the caller sees the worker and waits for it. A worker that wakes late costs nothing:
// it finds the job closed, or takes part in the next one.
void ThreadPool::run_job(int num_queues, Function function, void* context) {
  num_queues_ = num_queues;
  function_ = function;
  context_ = context;
  open_.store(true, std::memory_order_seq_cst);
  jobs_.ring();
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
  if (topology_.pinned) keep_on(node(node_of_thread_[static_cast<std::size_t>(thread)]).processors);
  uint32_t seen = 0;
  while (!stopping_.load(std::memory_order_relaxed)) {
    seen = jobs_.wait(seen, spin_us());
    work(thread);
  }
}

}  // namespace inlay::kernels
