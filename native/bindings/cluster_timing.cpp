#include "cluster_timing.h"

#include <nanobind/stl/array.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "../cluster/timing.h"
#include "module.h"

namespace inlay::bindings {

using namespace nb::literals;

void register_cluster_timing(nb::module_& cluster) {
  using cluster::Timing;
  nb::class_<Timing>(cluster, "Timing")
      .def(
          "__init__",
          [](Timing* self, const Timing::Vector& prior, double memory_steps, double outlier,
             double prior_steps) {
            new (self) Timing(prior, {memory_steps, outlier, prior_steps});
          },
          "prior"_a, "memory_steps"_a, "outlier"_a, "prior_steps"_a)
      .def(
          "observe",
          [](Timing& self, const SampleRows& samples) { self.observe(samples_of(samples)); },
          "samples"_a)
      .def("believe", &Timing::believe, "steps"_a, "relative_std"_a)
      .def_prop_ro("coefficients", [](const Timing& self) { return self.coefficients(); })
      .def_prop_ro("relative_std", &Timing::relative_std)
      .def_prop_ro("num_steps", &Timing::num_steps);
}

}  // namespace inlay::bindings
