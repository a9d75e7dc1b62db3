#include "copy_crew.h"

#include <sched.h>

#include <algorithm>

#include "../core/start_thread.h"

namespace inlay::net {

namespace {

// Two threads reach most of what the memory gives.
constexpr int kMaxSize = 4;

int usable_cores() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  return sched_getaffinity(0, sizeof(cores), &cores) == 0 ? CPU_COUNT(&cores) : 1;
}

}  // namespace

CopyCrew::CopyCrew(int size)
    : size_(size > 0 ? size : std::clamp(usable_cores() / 4, 1, kMaxSize)) {}

void CopyCrew::call(std::shared_ptr<SharedWork> work) {
  {
    const std::lock_guard lock(mutex_);
    if (closed_) return;
    if (threads_.empty())
      for (int i = 0; i < size_; ++i) threads_.push_back(start_thread([this] { run(); }));
    if (const auto known = std::ranges::find(works_, work, &Entry::work); known != works_.end())
      known->call = ++last_call_;
    else
      works_.push_back({std::move(work), ++last_call_});
  }
  called_.notify_all();
}

void CopyCrew::close() {
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    works_.clear();
  }
  called_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

void CopyCrew::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    called_.wait(lock, [this] { return closed_ || !works_.empty(); });
    if (closed_) return;
    const std::shared_ptr<SharedWork> work = works_.front().work;
    const uint64_t call = works_.front().call;
    lock.unlock();
    const bool did = work->do_piece();
    lock.lock();
    // Who found nothing before the last call does not speak for what came with it.
    if (!did && !works_.empty() && works_.front().call == call) works_.pop_front();
  }
}

}  // namespace inlay::net
