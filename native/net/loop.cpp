#include "loop.h"

#include <sys/epoll.h>

#include <algorithm>
#include <array>

#include "../core/errors.h"
#include "../core/start_thread.h"

namespace inlay::net {

namespace {

constexpr Loop::Id kWakeId = 0;
// After so many spins in vain it sleeps at once, until work comes again soon after work.
constexpr int kMaxFruitless = 8;
// That is: as soon as a spin would have lasted, by a thread that takes so long to wake.
constexpr std::chrono::microseconds kWaking(50);

constexpr Clock::rep kNever = Clock::time_point::max().time_since_epoch().count();

}  // namespace

Loop::Loop(int spin_us, Tick tick)
    : spin_us_(spin_us),
      tick_(std::move(tick)),
      epoll_(epoll_create1(EPOLL_CLOEXEC)),
      next_tick_(kNever) {
  if (!epoll_.valid()) throw ResourceError("the system gives no epoll descriptor");
  epoll_event event{EPOLLIN, {.u64 = kWakeId}};
  epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, wake_.fd(), &event);
}

void Loop::start() {
  thread_ = start_thread([this] { run(); });
}

void Loop::stop() {
  if (!thread_.joinable()) return;
  stopping_.store(true);
  wake_.signal();
  thread_.join();
}

Loop::Id Loop::add(const Descriptor& descriptor, uint32_t events,
                   std::shared_ptr<Handler> handler) {
  Id id;
  {
    const std::lock_guard lock(mutex_);
    id = ++last_id_;
    handlers_.emplace(id, std::move(handler));
  }
  epoll_event event{events, {.u64 = id}};
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, descriptor.get(), &event) != 0) {
    const std::lock_guard lock(mutex_);
    handlers_.erase(id);
    throw ResourceError("the system watches no more descriptors (fs.epoll.max_user_watches)");
  }
  return id;
}

void Loop::change(Id id, const Descriptor& descriptor, uint32_t events) {
  epoll_event event{events, {.u64 = id}};
  epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, descriptor.get(), &event);
}

void Loop::remove(Id id, const Descriptor& descriptor) {
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, descriptor.get(), nullptr);
  std::shared_ptr<Handler> removed;  // destroyed after the lock is free
  const std::lock_guard lock(mutex_);
  if (const auto found = handlers_.find(id); found != handlers_.end()) {
    removed = std::move(found->second);
    handlers_.erase(found);
  }
}

void Loop::post(std::function<void()> work) {
  {
    const std::lock_guard lock(mutex_);
    posted_.push_back(std::move(work));
  }
  wake_.signal();
}

void Loop::wake_by(Clock::time_point time) {
  const Clock::rep wanted = time.time_since_epoch().count();
  Clock::rep next = next_tick_.load();
  while (wanted < next)
    if (next_tick_.compare_exchange_weak(next, wanted)) {
      wake_.signal();
      return;
    }
}

void Loop::run() {
  const std::chrono::microseconds spin(spin_us_);
  std::array<epoll_event, 64> events;
  while (!stopping_.load()) {
    const Clock::rep next = next_tick_.load();
    int timeout_ms = -1;
    if (Clock::now() < hot_until_) {
      timeout_ms = 0;
    } else if (next != kNever) {
      const Clock::time_point time{Clock::duration(next)};
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(time - Clock::now()).count();
      timeout_ms = static_cast<int>(std::clamp<int64_t>(left, 0, 60000));
    }
    const int count =
        epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), timeout_ms);
    bool worked = false;
    for (int i = 0; i < count; ++i)
      worked |= dispatch(events[static_cast<std::size_t>(i)].data.u64,
                         events[static_cast<std::size_t>(i)].events);
    const Clock::time_point now = Clock::now();
    if (worked) {
      if (now < hot_until_ + spin + kWaking) fruitless_spins_ = 0;
      hot_until_ = fruitless_spins_ < kMaxFruitless ? now + spin : now;
    } else if (timeout_ms == 0 && count == 0) {
      if (now >= hot_until_) ++fruitless_spins_;
      // Who is to send the next work may share this core.
      std::this_thread::yield();
    }
    if (now.time_since_epoch().count() >= next_tick_.load()) {
      next_tick_.store(kNever);
      wake_by(tick_(now));
    }
  }
}

bool Loop::dispatch(Id id, uint32_t events) {
  if (id == kWakeId) {
    wake_.reset();
    run_posted();
    return false;
  }
  std::shared_ptr<Handler> handler;
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = handlers_.find(id); found != handlers_.end()) handler = found->second;
  }
  return handler != nullptr && handler->on_events(events);
}

void Loop::run_posted() {
  std::vector<std::function<void()>> posted;
  {
    const std::lock_guard lock(mutex_);
    posted.swap(posted_);
  }
  for (const auto& work : posted) work();
}

}  // namespace inlay::net
