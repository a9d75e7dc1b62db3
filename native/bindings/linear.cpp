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

void linear_heads(nb::handle x_THK, const kernels::LinearWeight& weight, nb::handle out_THN) {
  const Array x(x_THK, "x_THK", 3);
  const Array out(out_THN, "out_THN", 3, Access::kWrite);
  const int64_t heads = x.size(1);
  x.require_size(2, weight.in_features(), "the weight's inner size");
  for (int i = 0; i < 2; ++i) out.require_size(i, x.size(i), "the shape of x_THK");
  if (x.stride(2) != 1) fail("x_THK: the last dimension must be contiguous");
  require_heads_apart(out);
  const int64_t rows = kernels::round_up(out.size(2), kernels::kPanel);
  if (heads < 1 || weight.out_features() != heads * rows)
    fail("weight: has ", weight.out_features(), " rows, expected ", heads, " heads of ", rows);
  require_apart(out.extent(), {x.extent()});
  const kernels::LinearHeads call = {
      {x.as<const float>(Kind::kF32), x.size(0), x.size(2), x.stride(0)},
      x.stride(1),
      &weight,
      heads,
      out.size(2),
      out.as<float>(Kind::kF32),
      out.stride(0),
      out.stride(1)};
  const nb::gil_scoped_release unlocked;
  kernels::linear_heads(call);
}

}  // namespace

void register_linear(nb::module_& m) {
  m.def("linear", linear, "x_TK"_a.none(), "weight"_a, "out_TN"_a.none(), "bias_N"_a = nb::none(),
        "accumulate"_a = false);
  m.def("linear_heads", linear_heads, "x_THK"_a.none(), "weight"_a, "out_THN"_a.none());
}

}  // namespace inlay::bindings
