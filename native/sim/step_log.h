// When an instance's steps ended, for as long as a request looks back at them: most requests have a
// token in each step from their first to their last, so that the gaps between their tokens need not
// be kept by each of them.
#pragma once

#include <cstdint>
#include <vector>

#include "sequence.h"

namespace inlay::sim {

// Gaps between the tokens of a request.
struct Gaps {
  double tbt_s = 0.0;  // mean of its longest tenth, at least of one; see inlay.cluster.slo
  double longest_s = 0.0;
};

class StepLog {
 public:
  // In place of a step, where a sequence had its latest token at another instance.
  static constexpr uint64_t kElsewhere = UINT64_MAX - 1;

  // A step ended; they are numbered from 0.
  void ended(double now_s) { ends_s_.push_back(now_s); }
  uint64_t latest() const { return first_ + ends_s_.size() - 1; }

  // A sequence got a token in the latest step.
  void token(Sequence& sequence);
  // A sequence runs no longer: its gaps are its own from now on.
  void pause(Sequence& sequence);
  Gaps gaps(const Sequence& sequence);

  // Steps before this one are asked for no more.
  void forget(uint64_t step);
  std::size_t size() const { return ends_s_.size(); }

 private:
  double end_s(uint64_t step) const { return ends_s_[step - first_]; }
  void append_run(const Sequence& sequence, std::vector<float>& gaps) const;

  uint64_t first_ = 0;
  std::vector<double> ends_s_;
  std::vector<float> sorted_;  // of gaps()
};

}  // namespace inlay::sim
