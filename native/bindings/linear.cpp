#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <memory>

#include "array.h"
#include "module.h"

namespace inlay::bindings {

using namespace nb::literals;
using kernels::DType;
using kernels::LinearWeight;

namespace {

LinearWeight* new_weight(int64_t out_features, int64_t in_features, const std::string& dtype) {
  if (out_features < 1) fail("out_features: must be at least 1, got ", out_features);
  if (in_features < 1) fail("in_features: must be at least 1, got ", in_features);
  return new LinearWeight(out_features, in_features, parse_dtype(dtype));
}

void set_rows(LinearWeight& self, int64_t first, nb::handle rows_NK) {
  const Array source(rows_NK, "rows_NK", 2);
  source.require_size(1, self.in_features(), "in_features");
  if (first < 0 || first + source.size(0) > self.out_features())
    fail("first: rows ", first, "..", first + source.size(0), " are outside the weight's ",
         self.out_features());
  const kernels::SourceMatrix matrix = source_matrix(source);
  const nb::gil_scoped_release unlocked;
  self.set_rows(first, matrix);
}

// The caller owns the result.
LinearWeight* pack_linear(nb::handle weight_NK, const std::optional<std::string>& dtype) {
  const Array source(weight_NK, "weight_NK", 2);
  const kernels::SourceMatrix matrix = source_matrix(source);
  if (matrix.rows < 1 || matrix.cols < 1)
    fail("weight_NK: has shape ", source.shape_text(), ", both sizes must be at least 1");
  const DType target = dtype ? parse_dtype(*dtype) : matrix.dtype;
  const nb::gil_scoped_release unlocked;
  auto weight = std::make_unique<LinearWeight>(matrix.rows, matrix.cols, target);
  weight->set_rows(0, matrix);
  return weight.release();
}

template <typename T>
nb::object unpack_as(const LinearWeight& self) {
  auto memory =
      std::make_unique<T[]>(static_cast<std::size_t>(self.out_features() * self.in_features()));
  self.unpack(memory.get());
  T* data = memory.release();
  const nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<T*>(p); });
  return nb::ndarray<nb::numpy, T>(data,
                                   {static_cast<std::size_t>(self.out_features()),
                                    static_cast<std::size_t>(self.in_features())},
                                   owner)
      .cast();
}

void linear(nb::handle x_TK, const LinearWeight& weight, nb::handle out_TN, nb::handle bias_N,
            bool accumulate) {
  const Array x(x_TK, "x_TK", 2);
  const Array out(out_TN, "out_TN", 2, Access::kWrite);
  x.require_size(1, weight.in_features(), "the weight's inner size");
  out.require_size(0, x.size(0), "tokens of x_TK");
  out.require_size(1, weight.out_features(), "the weight's output size");
  const OptionalVector bias(bias_N, "bias_N", weight.out_features());
  require_apart(out, x);
  const kernels::ConstRows x_rows = const_rows(x);
  const kernels::Rows out_rows = rows(out);
  const nb::gil_scoped_release unlocked;
  kernels::linear(x_rows, weight, bias.data(), accumulate, out_rows);
}

}  // namespace

void register_linear(nb::module_& m) {
  nb::class_<LinearWeight>(m, "LinearWeight")
      .def(nb::new_(&new_weight), "out_features"_a, "in_features"_a, "dtype"_a = "float32")
      .def("set_rows", set_rows, "first"_a, "rows_NK"_a.none())
      .def("unpack",
           [](const LinearWeight& self) {
             return self.dtype() == DType::kF32 ? unpack_as<float>(self)
                                                : unpack_as<uint16_t>(self);
           })
      .def_prop_ro("shape",
                   [](const LinearWeight& self) {
                     return nb::make_tuple(self.out_features(), self.in_features());
                   })
      .def_prop_ro("dtype", [](const LinearWeight& self) { return dtype_name(self.dtype()); })
      .def_prop_ro("nbytes", &LinearWeight::size_bytes);
  m.def("pack_linear", pack_linear, "weight_NK"_a.none(), "dtype"_a = nb::none(),
        nb::rv_policy::take_ownership);
  m.def("linear", linear, "x_TK"_a.none(), "weight"_a, "out_TN"_a.none(), "bias_N"_a = nb::none(),
        "accumulate"_a = false);
}

}  // namespace inlay::bindings
