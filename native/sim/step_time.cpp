#include "step_time.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>
#include <utility>

#include "../core/errors.h"

namespace inlay::sim {

namespace {

double product(const Features& form, const Features& step) {
  double sum = 0.0;
  for (std::size_t i = 0; i < kNumFeatures; ++i) sum += form[i] * step[i];
  return sum;
}

// A mixing function of 64 bits: splitmix64 (Steele, Lea, Flood, OOPSLA 2014).
uint64_t mixed(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

double uniform(uint64_t bits) { return (static_cast<double>(bits >> 11) + 0.5) * 0x1p-53; }

}  // namespace

StepTime::StepTime(std::vector<std::vector<Features>> parts) : parts_(std::move(parts)) {
  if (parts_.empty()) throw ArgumentError("step time: at least one part is needed");
  for (const auto& forms : parts_) {
    if (forms.empty()) throw ArgumentError("step time: each part needs at least one form");
    for (const Features& form : forms)
      for (const double value : form)
        if (!(value >= 0.0 && std::isfinite(value)))
          throw ArgumentError("step time: coefficients must be finite and not negative, got " +
                              std::to_string(value));
  }
}

double StepTime::seconds(const Features& step) const {
  double sum = 0.0;
  for (const auto& forms : parts_) {
    double longest = 0.0;
    for (const Features& form : forms) longest = std::max(longest, product(form, step));
    sum += longest;
  }
  return sum;
}

double noise(double relative_std, uint64_t seed, uint64_t slot, uint64_t step) {
  if (relative_std == 0.0) return 1.0;
  const uint64_t draw = mixed(mixed(mixed(seed) ^ slot) ^ step);
  const double normal = std::sqrt(-2.0 * std::log(uniform(draw))) *
                        std::cos(2.0 * std::numbers::pi * uniform(mixed(draw)));
  const double variance = std::log1p(relative_std * relative_std);
  return std::exp(std::sqrt(variance) * normal - variance / 2);
}

}  // namespace inlay::sim
