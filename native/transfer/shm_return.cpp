#include "shm_return.h"

#include <algorithm>

namespace inlay::transfer::shm {

namespace {

constexpr std::chrono::milliseconds kFirstPause(50);
constexpr std::chrono::milliseconds kLongestPause(400);
// A peer that answers does so within a millisecond; close() waits for this one.
constexpr std::chrono::milliseconds kAnswer(200);

}  // namespace

void Returns::add(std::weak_ptr<PathOwner> peer, Bytes offer) {
  const std::lock_guard lock(mutex_);
  if (closed_) return;
  broken_.push_back({std::move(peer), std::move(offer), Clock::now() + kFirstPause,
                     Clock::duration(kFirstPause)});
  if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
  changed_.notify_all();
}

void Returns::run() {
  std::unique_lock lock(mutex_);
  while (!closed_) {
    const auto first = std::ranges::min_element(broken_, {}, &Broken::next);
    if (first == broken_.end()) {
      changed_.wait(lock);
      continue;
    }
    if (Clock::now() < first->next) {
      changed_.wait_until(lock, Clock::time_point(first->next));
      continue;
    }
    Broken due = std::move(*first);
    broken_.erase(first);
    lock.unlock();
    auto outcome = Outcome::kNever;
    if (const auto peer = due.peer.lock())
      outcome = make_link_(peer, due.offer, Clock::now() + kAnswer);
    lock.lock();
    if (outcome != Outcome::kLater) continue;
    due.pause = std::min<Clock::duration>(2 * due.pause, kLongestPause);
    due.next = Clock::now() + due.pause;
    broken_.push_back(std::move(due));
  }
}

void Returns::close() {
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

}  // namespace inlay::transfer::shm
