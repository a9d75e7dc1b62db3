#include "cluster_prefix_index.h"

#include "module.h"

namespace inlay::bindings {

using namespace nb::literals;

void register_cluster_prefix_index(nb::module_& cluster) {
  nb::class_<SharedIndex>(cluster, "PrefixIndex")
      .def(nb::init<uint64_t, uint64_t>(), "seed0"_a, "seed1"_a)
      .def("add", &SharedIndex::add)
      .def("remove", &SharedIndex::remove, "slot"_a)
      .def("apply", &SharedIndex::apply, "slot"_a, "stored"_a, "digests"_a)
      .def("load", &SharedIndex::load, "slot"_a, "digests"_a)
      .def("expect", &SharedIndex::expect, "slot"_a, "digests"_a)
      .def("turn", &SharedIndex::turn)
      .def("match", &SharedIndex::match, "digests"_a, "lengths"_a)
      .def("match_many", &SharedIndex::match_many, "digests"_a, "num_blocks"_a, "lengths"_a)
      .def("num_blocks", &SharedIndex::num_blocks, "slot"_a)
      .def("memory_bytes", &SharedIndex::memory_bytes)
      .def_prop_ro("num_slots", &SharedIndex::num_slots)
      .def_prop_ro("num_expected", &SharedIndex::num_expected)
      .def("__len__", &SharedIndex::size);
}

}  // namespace inlay::bindings
