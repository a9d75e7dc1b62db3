// The process's one pool of compute threads, spread over the NUMA nodes.
//
// The calling thread takes part. Work is a number of items that threads draw one by one, so a
// thread that the OS holds up delays only its current item. Each node's threads draw the items of
// their node first, then help the others. Workers spin for a bounded time after the last call, then
// sleep until the next. Callers from several threads take turns.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <type_traits>
#include <vector>

#include "aligned_buffer.h"
#include "doorbell.h"
#include "topology.h"

namespace inlay::kernels {

class ThreadPool {
 public:
  // The process's pool, one thread per usable core at first. A forked child gets a fresh one.
  // Whatever starts threads here throws ResourceError when the system refuses one.
  static ThreadPool& instance();

  explicit ThreadPool(int num_threads, Topology topology = read_topology());
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  // Threads that take part in a call, the caller included.
  int num_threads() const { return num_threads_.load(std::memory_order_relaxed); }
  // After an error the pool is as before, or the caller's thread alone if that is refused too.
  void set_num_threads(int num_threads);

  Topology topology();
  // Starts anew on these nodes with one thread per usable core; errors as above.
  void set_topology(Topology topology);

  // How long a worker spins for more work before it sleeps.
  int spin_us() const { return spin_us_.load(std::memory_order_relaxed); }
  void set_spin_us(int spin_us) { spin_us_.store(spin_us, std::memory_order_relaxed); }

  // One caller's turn: several parallel loops and the scratch memory between them.
  class Session {
   public:
    explicit Session(ThreadPool& pool) : pool_(pool), lock_(pool.turn_) {}

    int num_threads() const { return pool_.num_threads(); }
    int num_nodes() const { return static_cast<int>(pool_.topology_.nodes.size()); }

    // Where the memory of a shard belongs: the `node` of an AlignedBuffer. Shard s is at home on
    // node s % num_nodes(). -1 (anywhere) where the pool has all of a machine of one node.
    int memory_node(int shard) const {
      return pool_.topology_.pinned ? pool_.node(shard).memory_node : -1;
    }

    // Of `items` in a parallel_for(), the first that belongs to a node, for 0 to num_nodes().
    int64_t first_item(int node, int64_t items) const { return pool_.first_item(node, items); }

    // Calls body(item, thread) for every item in [0, items); returns when all are done. `thread` is
    // in [0, num_threads()). Each node begins with its part of the items, from first_item() on. The
    // body must not throw.
    template <typename Body>
    void parallel_for(int64_t items, Body&& body) {
      if (items <= 1 || num_threads() == 1) {
        for (int64_t i = 0; i < items; ++i) body(i, 0);
        return;
      }
      using Plain = std::remove_reference_t<Body>;
      pool_.run(
          items,
          [](void* context, int, int64_t item, int thread) noexcept {
            (*static_cast<Plain*>(context))(item, thread);
          },
          const_cast<std::remove_const_t<Plain>*>(&body));
    }

    // Calls body(shard, item, thread) for every item in [0, items_per_shard[shard]) of every shard.
    // Threads of node n begin with the shards n, n + num_nodes(), ... and then help the others, so
    // any number of shards works on any number of nodes.
    template <typename Body>
    void parallel_for_nodes(std::span<const int64_t> items_per_shard, Body&& body) {
      using Plain = std::remove_reference_t<Body>;
      pool_.run(
          items_per_shard,
          [](void* context, int shard, int64_t item, int thread) noexcept {
            (*static_cast<Plain*>(context))(shard, item, thread);
          },
          const_cast<std::remove_const_t<Plain>*>(&body));
    }

    // Memory shared by all threads, kept for the next call; contents undefined.
    template <typename T>
    T* shared_scratch(int64_t count) {
      pool_.shared_scratch_.reserve(static_cast<std::size_t>(count) * sizeof(T));
      return reinterpret_cast<T*>(pool_.shared_scratch_.data());
    }

    // Memory of one thread, on its node; prepare before the loop, get inside it.
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
  using Function = void (*)(void* context, int shard, int64_t item, int thread) noexcept;

  // The items of one shard that nobody has drawn yet. In a line of its own: its node's threads
  // write it all the time.
  struct alignas(64) Queue {
    std::atomic<int64_t> next{0};
    int64_t end = 0;
  };

  void run(int64_t items, Function function, void* context);
  void run(std::span<const int64_t> items_per_shard, Function function, void* context);
  void run_job(int num_queues, Function function, void* context);
  void work(int thread);
  void draw_items(int thread);
  void worker_loop(int thread);
  void make_queues(std::size_t count);
  void start(int num_threads);  // all threads or, throwing, none
  void stop();
  void restart(int num_threads, Topology topology);
  int64_t first_item(int node, int64_t items) const {
    return items * first_thread_[static_cast<std::size_t>(node)] / first_thread_.back();
  }
  const Topology::Node& node(int shard) const {
    return topology_.nodes[static_cast<std::size_t>(shard) % topology_.nodes.size()];
  }

  std::mutex turn_;  // held by the session
  Topology topology_;
  std::vector<std::thread> workers_;
  std::vector<int> node_of_thread_;
  std::vector<int> first_thread_;  // of each node, and the number of threads
  std::vector<AlignedBuffer> thread_scratch_;
  AlignedBuffer shared_scratch_;
  std::atomic<int> num_threads_{1};
  std::atomic<int> spin_us_{100};

  // The current job. Written by the caller while no worker is inside (see run_job()).
  Function function_ = nullptr;
  void* context_ = nullptr;
  std::unique_ptr<Queue[]> queues_;
  std::size_t queues_made_ = 0;
  int num_queues_ = 0;
  alignas(64) std::atomic<bool> open_{false};  // workers may enter the current job
  std::atomic<int> inside_{0};                 // workers that may be touching the job
  alignas(64) Doorbell jobs_;                  // rings once per job
  std::atomic<bool> stopping_{false};
};

}  // namespace inlay::kernels
