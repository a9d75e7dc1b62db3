#include "lane_lease.h"

namespace inlay::transfer {

std::optional<uint64_t> LaneLease::ask(bool writes) {
  if (asking_) return std::nullopt;
  asking_ = true;
  renewing_ = writes && held_;
  return renewing_ ? target_time_ : 0;
}

void LaneLease::answered(uint64_t target_time, Time now) {
  asking_ = false;
  // A new lease counts from the question's arrival, a renewed one from the time it repeated.
  sure_ = renewing_ ? told_ : now;
  told_ = now;
  target_time_ = target_time;
  held_ = true;
}

}  // namespace inlay::transfer
