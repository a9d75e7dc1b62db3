#include "timing.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace inlay::cluster {

namespace {

constexpr std::size_t kF = Timing::kFeatures;
constexpr uint64_t kScaleSteps = 16;  // first ones, which also set the scale of the prior

double dot(const Timing::Vector& a, const Timing::Vector& b) {
  double sum = 0.0;
  for (std::size_t f = 0; f < kF; ++f) sum += a[f] * b[f];
  return sum;
}

Timing::Vector features(const StepSample& step) {
  const bool prompt = step.prefill_tokens > 0;
  return {prompt ? 1.0 : 0.0,
          static_cast<double>(step.prefill_tokens),
          static_cast<double>(step.prefill_pairs),
          prompt ? 0.0 : 1.0,
          static_cast<double>(step.decodes),
          static_cast<double>(step.decode_context)};
}

// Solves a x = b for the free ones, the others being 0, by elimination with the greatest pivots.
Timing::Vector solution(const Timing::Matrix& a, const Timing::Vector& b,
                        const std::array<bool, kF>& free) {
  std::array<std::size_t, kF> at{};
  std::size_t n = 0;
  for (std::size_t f = 0; f < kF; ++f)
    if (free[f]) at[n++] = f;
  std::array<std::array<double, kF + 1>, kF> rows{};
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = 0; j < n; ++j) rows[i][j] = a[at[i]][at[j]];
    rows[i][n] = b[at[i]];
  }
  for (std::size_t i = 0; i < n; ++i) {
    std::size_t pivot = i;
    for (std::size_t row = i + 1; row < n; ++row)
      if (std::abs(rows[row][i]) > std::abs(rows[pivot][i])) pivot = row;
    std::swap(rows[i], rows[pivot]);
    for (std::size_t row = i + 1; row < n; ++row) {
      const double factor = rows[row][i] / rows[i][i];
      for (std::size_t j = i; j <= n; ++j) rows[row][j] -= factor * rows[i][j];
    }
  }
  Timing::Vector x{};
  for (std::size_t i = n; i-- > 0;) {
    double rest = rows[i][n];
    for (std::size_t j = i + 1; j < n; ++j) rest -= rows[i][j] * x[at[j]];
    x[at[i]] = rest / rows[i][i];
  }
  return x;
}

}  // namespace

Timing::Timing(const Vector& prior, const TimingConfig& config)
    : config_(config), prior_(prior), coefficients_(prior) {}

double Timing::relative_std() const { return std::sqrt(errors_squares_ / errors_weight_); }

void Timing::observe(std::span<const StepSample> samples) {
  steps_.clear();
  for (const StepSample& sample : samples)
    if (sample.seconds > 0 && std::isfinite(sample.seconds))
      steps_.push_back({features(sample), sample.seconds});
  if (steps_.empty()) return;
  if (num_steps_ < kScaleSteps) rescale();
  num_steps_ += steps_.size();
  // A first look cannot tell an outlier from a wrong prior.
  const double limit = config_.outlier * std::max(relative_std(), 0.02);
  const double keep = std::exp(-static_cast<double>(steps_.size()) / config_.memory_steps);
  for (Vector& row : squares_)
    for (double& value : row) value *= keep;
  for (double& value : products_) value *= keep;
  double squares = 0.0;
  for (const Step& step : steps_) {
    const double expected = dot(step.x, coefficients_);
    const double error = std::abs(step.seconds / expected - 1.0);
    const double weight = std::min(1.0, limit / std::max(error, 1e-12));
    const double counted = std::min(error, 2 * limit);
    squares += counted * counted;
    // Relative to what is expected, whose error is not that of the step; where that is far too
    // little, to the step itself, or a bad start would weigh more than all that follows.
    const double unit = std::max(expected, step.seconds / 2);
    const double target = step.seconds / unit;
    Vector scaled;
    for (std::size_t f = 0; f < kF; ++f) scaled[f] = step.x[f] * prior_[f] / unit;
    for (std::size_t f = 0; f < kF; ++f) {
      for (std::size_t g = 0; g < kF; ++g) squares_[f][g] += scaled[f] * (scaled[g] * weight);
      products_[f] += weight * target * scaled[f];
    }
  }
  errors_weight_ = errors_weight_ * keep + static_cast<double>(steps_.size());
  errors_squares_ = errors_squares_ * keep + squares;
  solve();
}

void Timing::believe(uint64_t steps, double relative_std) {
  const auto count = static_cast<double>(steps);
  squares_ = {};
  for (std::size_t f = 0; f < kF; ++f)
    squares_[f][f] = products_[f] = std::min(count, config_.memory_steps) / 10;
  if (steps > 0) {
    errors_weight_ = count;
    errors_squares_ = count * relative_std * relative_std;
  }
  num_steps_ = std::max(steps, kScaleSteps);
}

// Brings the prior to the scale of the first steps; its proportions stay.
void Timing::rescale() {
  std::vector<double> ratios;
  for (const Step& step : steps_) ratios.push_back(step.seconds / dot(step.x, prior_));
  std::sort(ratios.begin(), ratios.end());
  const std::size_t half = ratios.size() / 2;
  double factor = ratios.size() % 2 ? ratios[half] : (ratios[half - 1] + ratios[half]) / 2;
  if (num_steps_ > 0) {
    const auto count = static_cast<double>(steps_.size());
    factor = std::pow(factor, count / (count + static_cast<double>(num_steps_)));
  }
  for (double& value : prior_) value *= factor;
  for (Vector& row : squares_)
    for (double& value : row) value *= factor * factor;
  for (double& value : products_) value *= factor;
  if (num_steps_ == 0) coefficients_ = prior_;
}

// The best coefficients that are not negative: drop those that are, and solve again.
void Timing::solve() {
  Matrix a = squares_;
  Vector b = products_;
  for (std::size_t f = 0; f < kF; ++f) {
    a[f][f] += config_.prior_steps;
    b[f] += config_.prior_steps;
  }
  std::array<bool, kF> free;
  free.fill(true);
  Vector x = solution(a, b, free);
  while (std::any_of(x.begin(), x.end(), [](double value) { return value < 0; })) {
    for (std::size_t f = 0; f < kF; ++f) free[f] = free[f] && x[f] > 0;
    x = solution(a, b, free);
  }
  for (std::size_t f = 0; f < kF; ++f) coefficients_[f] = x[f] * prior_[f];
  ++version_;
}

}  // namespace inlay::cluster
