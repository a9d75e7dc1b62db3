// Tells the master of objects that are read by locations that are known, so that eviction hears of
// it, too.
#pragma once

#include <chrono>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "master_link.h"

namespace inlay::store {

class Touches {
 public:
  explicit Touches(MasterLink& link) : link_(link) {}

  // Told with others: when there are many, or with the first after a while.
  void add(std::string_view key) {
    std::vector<std::string> some;
    {
      const std::lock_guard lock(mutex_);
      keys_.emplace_back(key);
      const Clock::time_point now = Clock::now();
      if (keys_.size() < kTogether && now < next_) return;
      next_ = now + kEvery;
      some = std::exchange(keys_, {});
    }
    link_.tell(Touch{{some.begin(), some.end()}});
  }

 private:
  static constexpr std::size_t kTogether = 256;
  static constexpr std::chrono::milliseconds kEvery{500};

  MasterLink& link_;
  std::mutex mutex_;
  std::vector<std::string> keys_;
  Clock::time_point next_{};
};

}  // namespace inlay::store
