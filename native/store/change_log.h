// What became of a tenant's keys of late, numbered, for who keeps a list of them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <string_view>
#include <vector>

#include "messages.h"

namespace inlay::store {

// Costs nothing until somebody asks, and then about 100 bytes for each of the latest changes.
class ChangeLog {
 public:
  static constexpr std::size_t kMostKept = std::size_t{1} << 16;
  static constexpr std::size_t kMostTold = 4096;  // in one answer

  // Numbers begin above `before`, which is another one for each master.
  explicit ChangeLog(uint64_t before) : last_(before) {}

  void note(bool stored, std::string_view key) {
    if (!asked_) return;
    if (kept_.size() == kMostKept) kept_.pop_front();
    kept_.push_back({stored, std::string(key)});
    ++last_;
  }
  // Whether there is something to tell at once to who knows all up to `after`.
  bool news(uint64_t after) const { return !covers(after) || after < last_; }
  Changes::Answer since(uint64_t after) {
    Changes::Answer answer;
    answer.complete = covers(after);
    asked_ = true;
    answer.last = last_;
    if (!answer.complete) return answer;
    const auto begin = kept_.end() - static_cast<std::ptrdiff_t>(last_ - after);
    const auto left = static_cast<std::size_t>(kept_.end() - begin);
    const auto end = begin + static_cast<std::ptrdiff_t>(std::min(left, kMostTold));
    answer.changes.assign(begin, end);
    answer.last = after + answer.changes.size();
    return answer;
  }
  uint64_t memory_bytes() const { return kept_.size() * sizeof(Changes::Change); }

 private:
  bool covers(uint64_t after) const {
    return asked_ && after <= last_ && last_ - after <= kept_.size();
  }

  bool asked_ = false;
  uint64_t last_;
  std::deque<Changes::Change> kept_;
};

}  // namespace inlay::store
