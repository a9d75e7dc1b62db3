// Threads that make calls of the store for who must not wait, such as an event loop.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace inlay::store {

class CallQueue {
 public:
  explicit CallQueue(std::size_t num_threads) : num_threads_(num_threads) {}
  // Makes the calls that are queued, and returns.
  ~CallQueue();
  CallQueue(const CallQueue&) = delete;
  CallQueue& operator=(const CallQueue&) = delete;

  // Its threads are started as they are needed. Throws ResourceError. A call throws nothing.
  void submit(std::function<void()> call);

 private:
  void run();

  const std::size_t num_threads_;
  std::mutex mutex_;
  std::condition_variable more_;
  std::deque<std::function<void()>> calls_;
  std::size_t idle_ = 0;
  bool over_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace inlay::store
