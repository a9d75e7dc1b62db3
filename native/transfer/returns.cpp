#include "returns.h"

#include <algorithm>

#include "../core/start_thread.h"

namespace inlay::transfer {

void Returns::add(std::weak_ptr<PathOwner> peer, Make make) {
  const std::lock_guard lock(mutex_);
  if (closed_) return;
  lost_.push_back({std::move(peer), std::move(make), Clock::now() + first_rest_, first_rest_});
  changed_.notify_all();
  if (thread_.joinable()) return;
  try {
    thread_ = start_thread([this] { run(); });
  } catch (const ResourceError&) {
    // The next one that is lost tries to start it.
  }
}

void Returns::run() {
  std::unique_lock lock(mutex_);
  while (!closed_) {
    const auto first = std::ranges::min_element(lost_, {}, &Lost::next);
    if (first == lost_.end()) {
      changed_.wait(lock);
      continue;
    }
    const Clock::time_point next = first->next;  // others may be added during the wait
    if (Clock::now() < next) {
      changed_.wait_until(lock, next);
      continue;
    }
    std::list<Lost> due;
    due.splice(due.end(), lost_, first);
    lock.unlock();
    bool over = true;
    // A peer that ends with this reference loses its paths then, which come to add().
    if (const auto peer = due.front().peer.lock(); peer != nullptr && peer->alive())
      over = due.front().make(peer);
    lock.lock();
    if (over) continue;
    Lost& again = due.front();
    again.rest = std::min(2 * again.rest, longest_rest_);
    again.next = Clock::now() + again.rest;
    lost_.splice(lost_.end(), due);
  }
}

void Returns::close() {
  std::thread thread;
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    changed_.notify_all();
    thread.swap(thread_);
  }
  if (thread.joinable()) thread.join();
}

}  // namespace inlay::transfer
