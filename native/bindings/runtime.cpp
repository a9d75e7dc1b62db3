#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "../kernels/isa.h"
#include "../kernels/thread_pool.h"
#include "array.h"
#include "module.h"

namespace inlay::bindings {

using namespace nb::literals;
using kernels::ThreadPool;

void register_runtime(nb::module_& m) {
  m.def("available_isas", kernels::available_isas);
  m.def("compiled_isas", kernels::compiled_isas);
  m.def("selected_isa", [] { return std::string(kernels::selected().isa); });
  m.def("request_isa", [](const std::string& name) { kernels::request_isa(name); }, "name"_a);
  m.def("cpu_features", kernels::cpu_features);

  m.def("usable_processors", kernels::usable_processors);
  m.def("num_threads", [] { return ThreadPool::instance().num_threads(); });
  m.def(
      "set_num_threads",
      [](int num_threads) {
        if (num_threads < 1 || num_threads > 1024)
          fail("num_threads: must be in 1..1024, got ", num_threads);
        const nb::gil_scoped_release unlocked;
        ThreadPool::instance().set_num_threads(num_threads);
      },
      "num_threads"_a);
  m.def("spin_us", [] { return ThreadPool::instance().spin_us(); });
  m.def(
      "set_spin_us",
      [](int spin_us) {
        if (spin_us < 0 || spin_us > 1000000) fail("spin_us: must be in 0..1000000, got ", spin_us);
        ThreadPool::instance().set_spin_us(spin_us);
      },
      "spin_us"_a);
}

}  // namespace inlay::bindings
