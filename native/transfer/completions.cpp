#include "completions.h"

#include <utility>

namespace inlay::transfer {

void Completions::over(uint64_t key) {
  const std::lock_guard lock(mutex_);
  over_.push_back(key);
  if (over_.size() == 1) wake_.signal();
}

std::vector<uint64_t> Completions::take() {
  const std::lock_guard lock(mutex_);
  wake_.reset();
  return std::exchange(over_, {});
}

}  // namespace inlay::transfer
