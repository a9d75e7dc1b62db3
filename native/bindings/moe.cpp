#include <nanobind/stl/string.h>

#include <cmath>
#include <memory>

#include "array.h"
#include "module.h"

namespace inlay::bindings {

using namespace nb::literals;
using kernels::ExpertWeights;

namespace {

ExpertWeights* new_experts(int64_t num_experts, int64_t hidden, int64_t intermediate,
                           const std::string& dtype) {
  if (num_experts < 1) fail("num_experts: must be at least 1, got ", num_experts);
  if (hidden < 1) fail("hidden: must be at least 1, got ", hidden);
  if (intermediate < 1) fail("intermediate: must be at least 1, got ", intermediate);
  return new ExpertWeights(num_experts, hidden, intermediate, parse_dtype(dtype));
}

void set_expert(ExpertWeights& self, int64_t expert, nb::handle gate_FM, nb::handle up_FM,
                nb::handle down_MF) {
  if (expert < 0 || expert >= self.num_experts())
    fail("expert: must be in 0..", self.num_experts() - 1, ", got ", expert);
  const Array gate(gate_FM, "gate_FM", 2), up(up_FM, "up_FM", 2), down(down_MF, "down_MF", 2);
  for (const Array* array : {&gate, &up}) {
    array->require_size(0, self.intermediate(), "intermediate");
    array->require_size(1, self.hidden(), "hidden");
  }
  down.require_size(0, self.hidden(), "hidden");
  down.require_size(1, self.intermediate(), "intermediate");
  const kernels::SourceMatrix gate_m = source_matrix(gate), up_m = source_matrix(up),
                              down_m = source_matrix(down);
  const nb::gil_scoped_release unlocked;
  self.set(expert, gate_m, up_m, down_m);
}

void check_routing(const Array& ids, const Array& routing, int64_t num_experts) {
  const int32_t* id = ids.as<const int32_t>(Kind::kI32);
  const float* weight = routing.as<const float>(Kind::kF32);
  for (int64_t i = 0; i < ids.size(0) * ids.size(1); ++i) {
    if (id[i] < 0) continue;
    if (id[i] >= num_experts)
      fail("expert_ids_TK: id ", id[i], " of token ", i / ids.size(1), " is not below the ",
           num_experts, " experts");
    if (!std::isfinite(weight[i]))
      fail("routing_TK: weight ", weight[i], " of token ", i / ids.size(1), " is not finite");
  }
}

void moe(nb::handle x_TM, const ExpertWeights& experts, nb::handle expert_ids_TK,
         nb::handle routing_TK, nb::handle out_TM, bool accumulate) {
  const Array x(x_TM, "x_TM", 2);
  const Array ids(expert_ids_TK, "expert_ids_TK", 2);
  const Array routing(routing_TK, "routing_TK", 2);
  const Array out(out_TM, "out_TM", 2, Access::kWrite);
  x.require_size(1, experts.hidden(), "the experts' hidden size");
  ids.require_size(0, x.size(0), "tokens of x_TM");
  routing.require_size(0, x.size(0), "tokens of x_TM");
  routing.require_size(1, ids.size(1), "experts per token of expert_ids_TK");
  out.require_size(0, x.size(0), "tokens of x_TM");
  out.require_size(1, experts.hidden(), "the experts' hidden size");
  ids.require_contiguous();
  routing.require_contiguous();
  check_routing(ids, routing, experts.num_experts());
  require_apart(out, x);
  const kernels::ConstRows x_rows = const_rows(x);
  const kernels::Rows out_rows = rows(out);
  const int32_t* id = ids.as<const int32_t>(Kind::kI32);
  const float* weight = routing.as<const float>(Kind::kF32);
  const nb::gil_scoped_release unlocked;
  kernels::moe(x_rows, experts, id, weight, ids.size(1), accumulate, out_rows);
}

}  // namespace

void register_moe(nb::module_& m) {
  nb::class_<ExpertWeights>(m, "ExpertWeights")
      .def(nb::new_(&new_experts), "num_experts"_a, "hidden"_a, "intermediate"_a,
           "dtype"_a = "float32")
      .def("set", set_expert, "expert"_a, "gate_FM"_a.none(), "up_FM"_a.none(), "down_MF"_a.none())
      .def_prop_ro("num_experts", &ExpertWeights::num_experts)
      .def_prop_ro("hidden", &ExpertWeights::hidden)
      .def_prop_ro("intermediate", &ExpertWeights::intermediate)
      .def_prop_ro("dtype", [](const ExpertWeights& self) { return dtype_name(self.dtype()); })
      .def_prop_ro("nbytes", &ExpertWeights::size_bytes);
  m.def("moe", moe, "x_TM"_a.none(), "experts"_a, "expert_ids_TK"_a.none(), "routing_TK"_a.none(),
        "out_TM"_a.none(), "accumulate"_a = false);
}

}  // namespace inlay::bindings
