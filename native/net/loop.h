// One thread that waits for all descriptors of an engine, and sleeps when there is nothing to do.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#include "socket.h"

namespace inlay::net {

// Called on the loop's thread with events of epoll(7).
class Handler {
 public:
  virtual ~Handler() = default;
  // True when it did something that is likely to be followed by more within microseconds.
  virtual bool on_events(uint32_t events) = 0;
};

class Loop {
 public:
  using Id = uint64_t;
  // Returns when it wants to be called next; Clock::time_point::max() for not at all.
  using Tick = std::function<Clock::time_point(Clock::time_point now)>;

  // After work it looks for more during `spin_us` before it sleeps: waking a sleeping core takes
  // longer than most answers. `tick` runs on the loop's thread.
  Loop(int spin_us, Tick tick);
  // The loop runs from start() until stop(), which no handler may call.
  void start();
  void stop();

  // Of any thread. A handler is kept until it is removed and not called later, except that a call
  // may be under way on the loop's thread.
  Id add(const Descriptor& descriptor, uint32_t events, std::shared_ptr<Handler> handler);
  void change(Id id, const Descriptor& descriptor, uint32_t events);
  void remove(Id id, const Descriptor& descriptor);
  // Runs `work` on the loop's thread.
  void post(std::function<void()> work);
  // Has `tick` called no later than then.
  void wake_by(Clock::time_point time);

 private:
  void run();
  void run_posted();
  bool dispatch(Id id, uint32_t events);

  const int spin_us_;
  Tick tick_;
  Descriptor epoll_;
  WakeUp wake_;
  std::thread thread_;
  std::atomic<bool> stopping_{false};
  std::atomic<Clock::rep> next_tick_;
  Clock::time_point hot_until_{};
  int fruitless_spins_ = 0;

  std::mutex mutex_;
  Id last_id_ = 0;
  std::unordered_map<Id, std::shared_ptr<Handler>> handlers_;
  std::vector<std::function<void()>> posted_;
};

}  // namespace inlay::net
