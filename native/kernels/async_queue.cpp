#include "async_queue.h"

#include <utility>

#include "../core/errors.h"
#include "../core/start_thread.h"
#include "per_process.h"
#include "thread_pool.h"

namespace inlay::kernels {

bool Ticket::wait(std::optional<std::chrono::nanoseconds> timeout) {
  using Clock = Doorbell::Clock;
  if (!done() && queue_ != &AsyncQueue::instance())
    throw ArgumentError(
        "this work was submitted before the process forked and runs in the parent alone; submit "
        "and wait in one process");
  const Clock::time_point end = timeout ? Clock::now() + *timeout : Clock::time_point::max();
  // No spinning: that would take a core from the threads that do the work.
  if (!done() && bell_.wait(0, 0, end) == 0) return false;
  if (error_ != nullptr) std::rethrow_exception(error_);
  return true;
}

AsyncQueue& AsyncQueue::instance() {
  return PerProcess<AsyncQueue>::get([] { return new AsyncQueue(); });
}

std::shared_ptr<Ticket> AsyncQueue::submit(std::function<void()> work) {
  ThreadPool::instance();  // made here, where an error has somebody to go to
  auto ticket = std::make_shared<Ticket>();
  ticket->queue_ = this;
  {
    const std::lock_guard lock(mutex_);
    if (!started_) start_thread([this] { run(); }).detach();
    started_ = true;
    tasks_.push_back({std::move(work), ticket});
  }
  bell_.ring();
  return ticket;
}

std::optional<AsyncQueue::Task> AsyncQueue::take() {
  const std::lock_guard lock(mutex_);
  if (tasks_.empty()) return std::nullopt;
  Task task = std::move(tasks_.front());
  tasks_.pop_front();
  return task;
}

void AsyncQueue::run() {
  for (;;) {
    const uint32_t seen = bell_.rings();
    std::optional<Task> task = take();
    if (!task) {
      bell_.wait(seen, ThreadPool::instance().spin_us());
      continue;
    }
    try {
      task->work();
    } catch (...) {
      task->ticket->error_ = std::current_exception();
    }
    task->work = nullptr;
    task->ticket->bell_.ring();
  }
}

}  // namespace inlay::kernels
