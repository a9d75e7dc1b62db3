#include "../cluster/seen_prompts.h"
#include "cluster_prefix_index.h"
#include "module.h"

namespace inlay::bindings {

using namespace nb::literals;

void register_cluster_seen_prompts(nb::module_& cluster) {
  using cluster::SeenPrompts;
  nb::class_<SeenPrompts>(cluster, "SeenPrompts")
      .def(nb::init<uint64_t, uint64_t, std::size_t, std::size_t>(), "seed0"_a, "seed1"_a,
           "stride"_a, "max_digests"_a)
      .def(
          "ready_s",
          [](const SeenPrompts& self, const nb::bytes& digests, std::size_t num_blocks) {
            return self.ready_s(chain_of(digests), num_blocks);
          },
          "digests"_a, "num_blocks"_a)
      .def(
          "add",
          [](SeenPrompts& self, const nb::bytes& digests, std::size_t num_held, double ready_s) {
            self.add(chain_of(digests), num_held, ready_s);
          },
          "digests"_a, "num_held"_a, "ready_s"_a)
      .def_prop_ro("displaced", &SeenPrompts::displaced);
}

}  // namespace inlay::bindings
