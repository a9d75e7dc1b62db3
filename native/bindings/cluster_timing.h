// Samples of steps as Python gives them.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <tuple>
#include <vector>

#include "../cluster/timing.h"

namespace inlay::bindings {

// Prompt tokens and pairs, decodes and their context, and seconds; see core.instance_messages.
using SampleRows = std::vector<std::tuple<uint64_t, uint64_t, uint32_t, uint64_t, double>>;

inline std::vector<cluster::StepSample> samples_of(const SampleRows& rows) {
  std::vector<cluster::StepSample> samples;
  samples.reserve(rows.size());
  for (const auto& [tokens, pairs, decodes, context, seconds] : rows)
    samples.push_back({tokens, pairs, decodes, context, seconds});
  return samples;
}

}  // namespace inlay::bindings
