#include "step_log.h"

#include <algorithm>
#include <functional>
#include <numeric>

namespace inlay::sim {

void StepLog::token(Sequence& sequence) {
  const uint64_t step = latest();
  const double now_s = ends_s_.back();
  if (sequence.first_s < 0.0) {
    sequence.first_s = now_s;
    sequence.run_begin = step;
  } else if (sequence.last_step + 1 != step) {
    pause(sequence);
    sequence.gaps.push_back(static_cast<float>(now_s - sequence.last_s));
    sequence.run_begin = step;
  }
  sequence.last_step = step;
  sequence.last_s = now_s;
}

void StepLog::pause(Sequence& sequence) {
  if (sequence.first_s < 0.0) return;
  append_run(sequence, sequence.gaps);
  sequence.run_begin = sequence.last_step;
}

Gaps StepLog::gaps(const Sequence& sequence, GapCounts& counts) {
  sorted_.assign(sequence.gaps.begin(), sequence.gaps.end());
  append_run(sequence, sorted_);
  if (sorted_.empty()) return {};
  counts.add(sorted_);
  const auto worst = static_cast<std::ptrdiff_t>((sorted_.size() + 9) / 10);
  std::nth_element(sorted_.begin(), sorted_.begin() + worst - 1, sorted_.end(), std::greater<>());
  Gaps gaps;
  gaps.tbt_s =
      std::accumulate(sorted_.begin(), sorted_.begin() + worst, 0.0) / static_cast<double>(worst);
  gaps.longest_s = *std::max_element(sorted_.begin(), sorted_.begin() + worst);
  return gaps;
}

void StepLog::append_run(const Sequence& sequence, std::vector<float>& gaps) const {
  for (uint64_t step = sequence.run_begin; step < sequence.last_step; ++step)
    gaps.push_back(static_cast<float>(end_s(step + 1) - end_s(step)));
}

void StepLog::forget(uint64_t step) {
  if (step <= first_) return;
  ends_s_.erase(ends_s_.begin(), ends_s_.begin() + static_cast<std::ptrdiff_t>(step - first_));
  first_ = step;
}

}  // namespace inlay::sim
