// A lock that threads get in the order in which they ask for it. One that asks in a loop holds each
// of the others up once; of a std::mutex it may keep them away for good.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>

#include "../net/socket.h"

namespace inlay::transfer {

class TurnQueue {
 public:
  // A thread's place in the queue, from here on until this is destroyed.
  class Turn {
   public:
    explicit Turn(TurnQueue& queue) : queue_(queue) {
      const std::lock_guard lock(queue_.mutex_);
      queue_.turns_.push_back(this);
    }
    ~Turn() {
      {
        const std::lock_guard lock(queue_.mutex_);
        std::erase(queue_.turns_, this);
      }
      queue_.changed_.notify_all();
    }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

    // Waits until all who came before have left; false: some had not by `until`.
    bool wait(net::Clock::time_point until) {
      std::unique_lock lock(queue_.mutex_);
      return queue_.changed_.wait_until(lock, until, [&] { return queue_.turns_.front() == this; });
    }

   private:
    TurnQueue& queue_;
  };

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<const Turn*> turns_;
};

}  // namespace inlay::transfer
