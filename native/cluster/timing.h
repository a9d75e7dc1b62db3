// How long steps take, learned from what they took. The contract is src/inlay/cluster/timing.py,
// and the same in NumPy is src/inlay/cluster/_reference_timing.py.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace inlay::cluster {

// One step, as in core.instance_messages.
struct StepSample {
  uint64_t prefill_tokens = 0;
  uint64_t prefill_pairs = 0;
  uint32_t decodes = 0;
  uint64_t decode_context = 0;
  double seconds = 0.0;
};

struct TimingConfig {
  double memory_steps;
  double outlier;
  double prior_steps;
};

class Timing {
 public:
  static constexpr std::size_t kFeatures = 6;
  using Vector = std::array<double, kFeatures>;
  using Matrix = std::array<Vector, kFeatures>;

  Timing(const Vector& prior, const TimingConfig& config);

  // Steps that took no time, or none at all, are left out.
  void observe(std::span<const StepSample> samples);
  // What is known from before is worth so many steps.
  void believe(uint64_t steps, double relative_std);

  const Vector& coefficients() const { return coefficients_; }
  // Greater whenever these have changed.
  uint64_t version() const { return version_; }
  double relative_std() const;
  uint64_t num_steps() const { return num_steps_; }

 private:
  struct Step {
    Vector x;
    double seconds;
  };

  void rescale();
  void solve();

  TimingConfig config_;
  Vector prior_;
  Vector coefficients_;
  // In units of the prior.
  Matrix squares_{};
  Vector products_{};
  double errors_weight_ = 1.0;
  double errors_squares_ = 0.25;  // 50 % at first
  uint64_t num_steps_ = 0;
  uint64_t version_ = 1;
  std::vector<Step> steps_;  // of observe()
};

}  // namespace inlay::cluster
