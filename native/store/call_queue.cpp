#include "call_queue.h"

#include "../core/start_thread.h"

namespace inlay::store {

CallQueue::~CallQueue() {
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
  }
  more_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void CallQueue::submit(std::function<void()> call) {
  {
    const std::lock_guard lock(mutex_);
    if (idle_ <= calls_.size() && threads_.size() < num_threads_)
      threads_.push_back(start_thread([this] { run(); }));
    calls_.push_back(std::move(call));
  }
  more_.notify_one();
}

void CallQueue::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    ++idle_;
    more_.wait(lock, [this] { return over_ || !calls_.empty(); });
    --idle_;
    if (calls_.empty()) return;
    {
      const std::function<void()> call = std::move(calls_.front());
      calls_.pop_front();
      lock.unlock();
      call();
    }
    lock.lock();
  }
}

}  // namespace inlay::store
