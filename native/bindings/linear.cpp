#include "array.h"
#include "module.h"

namespace inlay::bindings {

using namespace nb::literals;

namespace {

void linear(nb::handle x_TK, const kernels::LinearWeight& weight, nb::handle out_TN,
            nb::handle bias_N, bool accumulate) {
  const Array x(x_TK, "x_TK", 2);
  const Array out(out_TN, "out_TN", 2, Access::kWrite);
  x.require_size(1, weight.in_features(), "the weight's inner size");
  out.require_size(0, x.size(0), "tokens of x_TK");
  out.require_size(1, weight.out_features(), "the weight's output size");
  const OptionalVector bias(bias_N, "bias_N", weight.out_features());
  const kernels::ConstRows x_rows = const_rows(x);
  const kernels::Rows out_rows = rows(out);
  require_apart(out.extent(), {x.extent(), bias.extent()});
  const nb::gil_scoped_release unlocked;
  kernels::linear(x_rows, weight, bias.data(), accumulate, out_rows);
}

}  // namespace

void register_linear(nb::module_& m) {
  m.def("linear", linear, "x_TK"_a.none(), "weight"_a, "out_TN"_a.none(), "bias_N"_a = nb::none(),
        "accumulate"_a = false);
}

}  // namespace inlay::bindings
