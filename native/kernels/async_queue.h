// Work that runs beside its submitter: one thread runs what is submitted, in that order.
//
// The work takes the thread pool's sessions like any caller. The thread starts with the first
// submission and sleeps when idle. A process may end at any time: what is pending then is dropped.
#pragma once

#include <chrono>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>

#include "doorbell.h"

namespace inlay::kernels {

// One piece of submitted work.
class Ticket {
 public:
  bool done() const { return bell_.rings() > 0; }

  // Waits for the work, at most `timeout` where one is given. False: the time was over first.
  // Throws what the work threw, and ArgumentError in a forked child of the submitter, where nobody
  // runs the work.
  bool wait(std::optional<std::chrono::nanoseconds> timeout);

 private:
  friend class AsyncQueue;

  Doorbell bell_;
  std::exception_ptr error_;
  const void* queue_ = nullptr;  // to recognise a forked child
};

class AsyncQueue {
 public:
  // The process's queue. A forked child gets a fresh one.
  static AsyncQueue& instance();

  // `work` is destroyed on the queue's thread before its ticket is done. The ticket is shared: the
  // queue may need it longer than a submitter who does not wait.
  std::shared_ptr<Ticket> submit(std::function<void()> work);

 private:
  struct Task {
    std::function<void()> work;
    std::shared_ptr<Ticket> ticket;
  };

  AsyncQueue() = default;
  void run();
  std::optional<Task> take();

  Doorbell bell_;  // rings once per submission
  std::mutex mutex_;
  std::deque<Task> tasks_;
  bool started_ = false;
};

}  // namespace inlay::kernels
