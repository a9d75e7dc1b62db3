// When an instance's steps ended, for as long as a request looks back at them: most requests have a
// token in each step from their first to their last, so that the gaps between their tokens need not
// be kept by each of them.
#pragma once

#include <bit>
#include <cstdint>
#include <vector>

#include "sequence.h"

namespace inlay::sim {

// Gaps between the tokens of a request.
struct Gaps {
  double tbt_s = 0.0;  // mean of its longest tenth, at least of one; see inlay.cluster.slo
  double longest_s = 0.0;
};

// Gaps by how long they are: a bin for each exponent and the first seven bits behind it, so that a
// gap is within 0.4 % of its bin's middle.
class GapCounts {
 public:
  static constexpr int kShift = 16;  // of a float's bits
  static constexpr std::size_t kBins = 0x7f80;

  GapCounts() : bins_(kBins) {}

  void add(const std::vector<float>& gaps) {
    for (const float gap : gaps) ++bins_[std::bit_cast<uint32_t>(gap) >> kShift];
  }
  const std::vector<uint64_t>& bins() const { return bins_; }

 private:
  std::vector<uint64_t> bins_;
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
  // Also counts them all.
  Gaps gaps(const Sequence& sequence, GapCounts& counts);

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
