#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "../kernels/formats.h"
#include "../kernels/isa.h"
#include "../kernels/thread_pool.h"
#include "array.h"
#include "module.h"

namespace inlay::bindings {

using namespace nb::literals;
using kernels::ThreadPool;

namespace {

using Nodes = std::vector<std::vector<int>>;

constexpr std::size_t kMaxNodes = 64;

Nodes topology() {
  const nb::gil_scoped_release unlocked;
  Nodes nodes;
  for (const kernels::Topology::Node& node : ThreadPool::instance().topology().nodes)
    nodes.push_back(node.processors);
  return nodes;
}

void set_topology(const std::optional<Nodes>& nodes) {
  if (nodes && (nodes->empty() || nodes->size() > kMaxNodes))
    fail("nodes: must be 1..", kMaxNodes, " lists of processors, got ", nodes->size());
  const std::vector<int> usable = kernels::affinity_mask();
  for (const std::vector<int>& node : nodes.value_or(Nodes{})) {
    if (node.empty()) fail("nodes: each must have a processor, got an empty list");
    for (const int processor : node)
      if (!std::ranges::binary_search(usable, processor))
        fail("nodes: processor ", processor, " is not one that this process may use (taskset -cp ",
             getpid(), " tells them)");
  }
  const nb::gil_scoped_release unlocked;
  ThreadPool::instance().set_topology(nodes ? kernels::choose_topology(*nodes)
                                            : kernels::read_topology());
}

}  // namespace

void register_runtime(nb::module_& m) {
  m.def("isa_variants", [] {
    nb::list rows;
    for (const kernels::IsaVariant& variant : kernels::isa_variants()) {
      const kernels::KernelTable& table = *variant.table;
      rows.append(nb::make_tuple(table.isa, variant.problem, table.integers.name, table.bf16.name,
                                 table.vectors.name));
    }
    return rows;
  });
  m.def("formats", [] {
    constexpr const char* kScales[] = {"",         "bf16",    "float32", "e8m0", "bf16 and zero",
                                       "in block", "in block"};
    nb::list rows;
    for (const kernels::FormatInfo& f : kernels::kFormats)
      rows.append(nb::make_tuple(f.name, f.bits, f.bias, f.group, f.k_multiple,
                                 kScales[static_cast<int32_t>(f.scale)], f.block.k, f.block.bytes));
    return rows;
  });
  m.def("selected_isa", [] { return std::string(kernels::selected().isa); });
  m.def("request_isa", [](const std::string& name) { kernels::request_isa(name); }, "name"_a);
  m.def("cpu_features", kernels::cpu_features);

  m.def("usable_processors", [] {
    const nb::gil_scoped_release unlocked;
    return ThreadPool::instance().topology().usable_cores;
  });
  m.def("topology", topology);
  m.def("set_topology", set_topology, "nodes"_a.none());
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
