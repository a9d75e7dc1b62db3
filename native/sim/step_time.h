// How long a step takes, of what it computes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace inlay::sim {

// What a step computes, as numbers that its time is linear in. The first six are the FEATURES of
// inlay.cluster.timing; whether a step has prompt tokens is one of them, so that a constant is the
// same coefficient for `prompt_step` and `decode_step`.
enum Feature : std::size_t {
  kPromptStep,  // 1 where prompt tokens are computed, else 0
  kTokens,      // of prompts
  kPairs,       // sum over these of the tokens each attends to
  kDecodeStep,  // 1 - kPromptStep
  kRows,        // tokens computed one by one
  kContext,     // sum over these of their contexts
  kLogitRows,   // tokens that get logits
  kExperts,     // different experts of a layer that are expected to be chosen
  kNumFeatures
};
using Features = std::array<double, kNumFeatures>;

// A sum of parts, each the longest of some linear forms: an operator that is bound by bytes or by
// operations is a part with two forms.
class StepTime {
 public:
  // Coefficients in seconds per one of each feature. Throws ArgumentError where there is no part, a
  // part has no form, or a coefficient is negative or not finite.
  explicit StepTime(std::vector<std::vector<Features>> parts);

  double seconds(const Features& step) const;

 private:
  std::vector<std::vector<Features>> parts_;
};

// A factor of a step's time: log-normal, its mean 1, drawn from what it is asked for alone, so that
// the same step of the same instance has the same one whatever else happens.
double noise(double relative_std, uint64_t seed, uint64_t slot, uint64_t step);

}  // namespace inlay::sim
