// Packed weights: made from arrays, changed, read back, and mapped from a file's pages.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <tuple>

#include "../core/errors.h"
#include "array.h"
#include "formats.h"
#include "module.h"

namespace inlay::bindings {

using namespace nb::literals;
using kernels::ExpertWeights;
using kernels::Format;
using kernels::LinearWeight;
using kernels::WeightMemory;

namespace {

template <typename T>
using NumPy = nb::ndarray<nb::numpy, T>;

// A new NumPy array of the caller's, and where its elements are.
template <typename T>
struct NewArray {
  explicit NewArray(std::initializer_list<int64_t> sizes) {
    std::size_t shape[2], count = 1, dims = 0;
    for (const int64_t size : sizes) {
      shape[dims++] = static_cast<std::size_t>(size);
      count *= static_cast<std::size_t>(size);
    }
    data = new T[count];
    const nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<T*>(p); });
    array = NumPy<T>(data, dims, shape, owner);
  }
  T* data;
  NumPy<T> array;
};

void require_positive(const char* name, int64_t size) {
  constexpr int64_t kMax = int64_t{1} << 31;
  if (size < 1 || size >= kMax) fail(name, ": must be at least 1 and below 2^31, got ", size);
}

// Bytes of another object, which stay borrowed until the weights are gone.
WeightMemory borrowed(nb::handle object, const char* name) {
  auto buffer = std::make_unique<Py_buffer>();
  if (PyObject_GetBuffer(object.ptr(), buffer.get(), PyBUF_SIMPLE) != 0) {
    PyErr_Clear();
    fail(name, ": must be contiguous bytes, e.g. a memoryview of a mapped file");
  }
  const auto release = [](Py_buffer* p) {
    const nb::gil_scoped_acquire locked;
    PyBuffer_Release(p);
    delete p;
  };
  const std::shared_ptr<Py_buffer> owner(buffer.release(), release);
  if (reinterpret_cast<std::uintptr_t>(owner->buf) % 64 != 0)
    fail(name, ": must begin at a multiple of 64 bytes");
  return WeightMemory(static_cast<const std::byte*>(owner->buf), owner->len, owner);
}

Format linear_format(int64_t out_features, int64_t in_features, const std::string& format) {
  require_positive("out_features", out_features);
  require_positive("in_features", in_features);
  const Format parsed = parse_format(format);
  require_inner_size(parsed, "in_features", in_features);
  return parsed;
}

LinearWeight* new_linear(int64_t out_features, int64_t in_features, const std::string& format) {
  const Format parsed = linear_format(out_features, in_features, format);
  const nb::gil_scoped_release unlocked;  // it asks the pool for its nodes
  return new LinearWeight(out_features, in_features, parsed);
}

// The caller owns the result.
LinearWeight* map_linear(int64_t out_features, int64_t in_features, const std::string& format,
                         nb::handle panels) {
  const Format parsed = linear_format(out_features, in_features, format);
  return new LinearWeight(out_features, in_features, parsed, borrowed(panels, "panels"));
}

void require_no_blocks(Format format) {
  if (kernels::has_blocks(format))
    fail("format: floats do not become '", kernels::info(format).name,
         "', whose blocks only files hold; set_rows_blocks and set_blocks take those");
}

// The caller owns the result.
LinearWeight* pack_linear(nb::handle weight_NK, const std::optional<std::string>& format) {
  const Array source(weight_NK, "weight_NK", 2);
  const kernels::SourceMatrix matrix = source_matrix(source);
  if (matrix.rows < 1 || matrix.cols < 1)
    fail("weight_NK: has shape ", source.shape_text(), ", both sizes must be at least 1");
  const Format target = format                                 ? parse_format(*format)
                        : matrix.dtype == kernels::DType::kF32 ? Format::kF32
                                                               : Format::kBf16;
  require_inner_size(target, "weight_NK", matrix.cols);
  require_no_blocks(target);
  const nb::gil_scoped_release unlocked;
  auto weight = std::make_unique<LinearWeight>(matrix.rows, matrix.cols, target);
  weight->set_rows(0, matrix);
  return weight.release();
}

void require_range(const LinearWeight& weight, int64_t first, const Array& rows) {
  if (first < 0 || first > weight.out_features() - rows.size(0))
    fail("first: ", rows.size(0), " rows from ", first, " on are outside the weight's ",
         weight.out_features());
}

void set_rows(LinearWeight& self, int64_t first, nb::handle rows_NK) {
  require_no_blocks(self.format());
  const Array rows(rows_NK, "rows_NK", 2);
  rows.require_size(1, self.in_features(), "in_features");
  require_range(self, first, rows);
  const kernels::SourceMatrix matrix = source_matrix(rows);
  const nb::gil_scoped_release unlocked;
  self.set_rows(first, matrix);
}

// Scales, and zero points after each, in a row.
int64_t scale_columns(Format format, int64_t k) {
  return kernels::panel_layout(format, k).groups * (kernels::has_zeros(format) ? 2 : 1);
}

// Rows of k weights, int8 of integers and uint8 of small floats, and their scales.
kernels::QuantizedMatrix quantized_matrix(const Array& q, const Array& scales, Format format,
                                          int64_t k, const char* k_name) {
  q.require_size(1, kernels::quantized_row_bytes(format, k), k_name);
  scales.require_size(0, q.size(0), "as many rows as there are of weights");
  scales.require_size(1, scale_columns(format, k),
                      kernels::has_zeros(format) ? "twice the groups of a row" : "groups of a row");
  for (const Array* array : {&q, &scales})
    if (array->stride(1) != 1) fail(array->name(), ": the last dimension must be contiguous");
  const bool integers = kernels::info(format).operand == kernels::Operand::kI8;
  const bool bytes = kernels::quantized_scale_bytes(format) == 1;
  return {q.name(),
          scales.name(),
          q.as<const std::byte>(integers ? Kind::kI8 : Kind::kU8),
          scales.as<const std::byte>(bytes ? Kind::kU8 : Kind::kF32),
          q.size(0),
          k,
          q.stride(0),
          scales.stride(0) * (bytes ? 1 : 4)};
}

void set_rows_quantized(LinearWeight& self, int64_t first, nb::handle q_NK, nb::handle scales_NG) {
  require_scales(self.format());
  const Array q(q_NK, "q_NK", 2), scales(scales_NG, "scales_NG", 2);
  const kernels::QuantizedMatrix matrix =
      quantized_matrix(q, scales, self.format(), self.in_features(), "in_features");
  require_range(self, first, q);
  const nb::gil_scoped_release unlocked;
  self.set_rows(first, matrix);
}

// Rows of k weights as a file has them.
kernels::BlockMatrix block_matrix(const Array& blocks, Format format, int64_t k) {
  if (!kernels::has_blocks(format))
    fail("format: '", kernels::info(format).name, "' has no blocks; use set_rows or set_quantized");
  blocks.require_size(1, kernels::block_row_bytes(format, k), "the bytes of a row of blocks");
  if (blocks.stride(1) != 1) fail(blocks.name(), ": the last dimension must be contiguous");
  return {blocks.name(), blocks.as<const std::byte>(Kind::kU8), blocks.size(0), k,
          blocks.stride(0)};
}

void set_rows_blocks(LinearWeight& self, int64_t first, nb::handle blocks_NB) {
  const Array blocks(blocks_NB, "blocks_NB", 2);
  const kernels::BlockMatrix matrix = block_matrix(blocks, self.format(), self.in_features());
  require_range(self, first, blocks);
  const nb::gil_scoped_release unlocked;
  self.set_rows(first, matrix);
}

NumPy<float> dequantize_linear(const LinearWeight& self) {
  NewArray<float> result({self.out_features(), self.in_features()});
  {
    const nb::gil_scoped_release unlocked;
    self.dequantize(result.data);
  }
  return result.array;
}

// A new array of so many rows and columns, and where its elements are.
template <typename T>
std::pair<nb::object, std::byte*> new_matrix(int64_t rows, int64_t columns) {
  NewArray<T> array({rows, columns});
  return {array.array.cast(), reinterpret_cast<std::byte*>(array.data)};
}

std::tuple<nb::object, nb::object> quantize(nb::handle weight_NK, const std::string& format) {
  const Format parsed = parse_format(format);
  require_scales(parsed);
  const Array source(weight_NK, "weight_NK", 2);
  const kernels::SourceMatrix matrix = source_matrix(source);
  if (matrix.cols < 1)
    fail("weight_NK: has shape ", source.shape_text(), ", but rows must hold at least 1 value");
  require_inner_size(parsed, "weight_NK", matrix.cols);
  const bool integers = kernels::info(parsed).operand == kernels::Operand::kI8;
  const int64_t columns = kernels::quantized_row_bytes(parsed, matrix.cols);
  const int64_t groups = scale_columns(parsed, matrix.cols);
  const auto [q, q_data] = integers ? new_matrix<int8_t>(matrix.rows, columns)
                                    : new_matrix<uint8_t>(matrix.rows, columns);
  const auto [scales, scales_data] = kernels::quantized_scale_bytes(parsed) == 1
                                         ? new_matrix<uint8_t>(matrix.rows, groups)
                                         : new_matrix<float>(matrix.rows, groups);
  std::byte* const q_bytes = q_data;
  std::byte* const scale_bytes = scales_data;
  {
    const nb::gil_scoped_release unlocked;
    kernels::quantize(matrix, parsed, q_bytes, scale_bytes);
  }
  return {q, scales};
}

kernels::ExpertFormats expert_formats(int64_t num_experts, int64_t hidden, int64_t intermediate,
                                      const std::string& format,
                                      const std::optional<std::string>& down_format) {
  require_positive("num_experts", num_experts);
  require_positive("hidden", hidden);
  require_positive("intermediate", intermediate);
  const Format gate_up = parse_format(format);
  const Format down = down_format ? parse_format(*down_format) : gate_up;
  if ((gate_up == Format::kF32) != (down == Format::kF32))  // training multiplies in one dtype
    fail("down_format: '", kernels::info(down).name, "' beside '", kernels::info(gate_up).name,
         "': all three matrices are float32 or none is");
  require_inner_size(gate_up, "hidden", hidden);
  require_inner_size(down, "intermediate", intermediate);
  if (!down_format) require_inner_size(gate_up, "intermediate", intermediate);
  return {gate_up, down};
}

ExpertWeights* new_experts(int64_t num_experts, int64_t hidden, int64_t intermediate,
                           const std::string& format, bool bias,
                           const std::optional<std::string>& down_format) {
  const kernels::ExpertFormats parsed =
      expert_formats(num_experts, hidden, intermediate, format, down_format);
  const nb::gil_scoped_release unlocked;  // it asks the pool for its nodes
  return new ExpertWeights(num_experts, hidden, intermediate, parsed, bias);
}

// The caller owns the result.
ExpertWeights* map_experts(int64_t num_experts, int64_t hidden, int64_t intermediate,
                           const std::string& format, nb::handle gate_up, nb::handle down,
                           nb::handle biases, const std::optional<std::string>& down_format) {
  const kernels::ExpertFormats parsed =
      expert_formats(num_experts, hidden, intermediate, format, down_format);
  WeightMemory of_biases;
  if (!biases.is_none()) {
    of_biases = borrowed(biases, "biases");
    if (of_biases.size() == 0) fail("biases: holds no bytes; None stands for no biases");
  }
  return new ExpertWeights(num_experts, hidden, intermediate, parsed, borrowed(gate_up, "gate_up"),
                           borrowed(down, "down"), std::move(of_biases));
}

void require_expert(const ExpertWeights& experts, int64_t expert) {
  if (expert < 0 || expert >= experts.num_experts())
    fail("expert: must be in 0..", experts.num_experts() - 1, ", got ", expert);
}

void require_finite(const OptionalVector& bias, int64_t size) {
  const float* x = bias.data();
  if (x != nullptr && !std::all_of(x, x + size, [](float value) { return std::isfinite(value); }))
    throw NotFiniteError(std::string(bias.name()) +
                         ": holds a NaN or an infinity; weights must be finite");
}

// The biases that a call gives an expert, checked.
struct Biases {
  Biases(const ExpertWeights& experts, nb::handle gate_F, nb::handle up_F, nb::handle down_M)
      : gate(gate_F, "gate_bias_F", experts.intermediate()),
        up(up_F, "up_bias_F", experts.intermediate()),
        down(down_M, "down_bias_M", experts.hidden()) {
    for (const OptionalVector* bias : {&gate, &up, &down})
      if (bias->data() != nullptr && !experts.has_bias())
        fail(bias->name(), ": these experts were made without biases; make them with bias=True");
    require_finite(gate, experts.intermediate());
    require_finite(up, experts.intermediate());
    require_finite(down, experts.hidden());
  }
  OptionalVector gate, up, down;
};

void set_expert(ExpertWeights& self, int64_t expert, nb::handle gate_FM, nb::handle up_FM,
                nb::handle down_MF, nb::handle gate_bias_F, nb::handle up_bias_F,
                nb::handle down_bias_M) {
  require_expert(self, expert);
  const Array gate(gate_FM, "gate_FM", 2), up(up_FM, "up_FM", 2), down(down_MF, "down_MF", 2);
  for (const Format format : {self.gate_up_format(), self.down_format()}) require_no_blocks(format);
  for (const Array* array : {&gate, &up}) {
    array->require_size(0, self.intermediate(), "intermediate");
    array->require_size(1, self.hidden(), "hidden");
  }
  down.require_size(0, self.hidden(), "hidden");
  down.require_size(1, self.intermediate(), "intermediate");
  const kernels::SourceMatrix gate_m = source_matrix(gate), up_m = source_matrix(up),
                              down_m = source_matrix(down);
  const Biases biases(self, gate_bias_F, up_bias_F, down_bias_M);
  const nb::gil_scoped_release unlocked;
  self.set(expert, gate_m, up_m, down_m);
  self.set_bias(expert, biases.gate.data(), biases.up.data(), biases.down.data());
}

void set_expert_quantized(ExpertWeights& self, int64_t expert, nb::handle gate_q_FM,
                          nb::handle gate_scales_FG, nb::handle up_q_FM, nb::handle up_scales_FG,
                          nb::handle down_q_MF, nb::handle down_scales_MG, nb::handle gate_bias_F,
                          nb::handle up_bias_F, nb::handle down_bias_M) {
  require_expert(self, expert);
  for (const Format format : {self.gate_up_format(), self.down_format()}) require_scales(format);
  const Array gate_q(gate_q_FM, "gate_q_FM", 2), up_q(up_q_FM, "up_q_FM", 2),
      down_q(down_q_MF, "down_q_MF", 2), gate_scales(gate_scales_FG, "gate_scales_FG", 2),
      up_scales(up_scales_FG, "up_scales_FG", 2), down_scales(down_scales_MG, "down_scales_MG", 2);
  gate_q.require_size(0, self.intermediate(), "intermediate");
  up_q.require_size(0, self.intermediate(), "intermediate");
  down_q.require_size(0, self.hidden(), "hidden");
  const kernels::QuantizedMatrix gate = quantized_matrix(gate_q, gate_scales, self.gate_up_format(),
                                                         self.hidden(), "hidden"),
                                 up = quantized_matrix(up_q, up_scales, self.gate_up_format(),
                                                       self.hidden(), "hidden"),
                                 down = quantized_matrix(down_q, down_scales, self.down_format(),
                                                         self.intermediate(), "intermediate");
  const Biases biases(self, gate_bias_F, up_bias_F, down_bias_M);
  const nb::gil_scoped_release unlocked;
  self.set(expert, gate, up, down);
  self.set_bias(expert, biases.gate.data(), biases.up.data(), biases.down.data());
}

void set_expert_blocks(ExpertWeights& self, int64_t expert, nb::handle gate_FB, nb::handle up_FB,
                       nb::handle down_MB, nb::handle gate_bias_F, nb::handle up_bias_F,
                       nb::handle down_bias_M) {
  require_expert(self, expert);
  const Array gate(gate_FB, "gate_FB", 2), up(up_FB, "up_FB", 2), down(down_MB, "down_MB", 2);
  gate.require_size(0, self.intermediate(), "intermediate");
  up.require_size(0, self.intermediate(), "intermediate");
  down.require_size(0, self.hidden(), "hidden");
  const kernels::BlockMatrix gate_m = block_matrix(gate, self.gate_up_format(), self.hidden()),
                             up_m = block_matrix(up, self.gate_up_format(), self.hidden()),
                             down_m = block_matrix(down, self.down_format(), self.intermediate());
  const Biases biases(self, gate_bias_F, up_bias_F, down_bias_M);
  const nb::gil_scoped_release unlocked;
  self.set(expert, gate_m, up_m, down_m);
  self.set_bias(expert, biases.gate.data(), biases.up.data(), biases.down.data());
}

std::tuple<NumPy<float>, NumPy<float>, NumPy<float>> dequantize_expert(const ExpertWeights& self,
                                                                       int64_t expert) {
  require_expert(self, expert);
  NewArray<float> gate({self.intermediate(), self.hidden()}),
      up({self.intermediate(), self.hidden()}), down({self.hidden(), self.intermediate()});
  {
    const nb::gil_scoped_release unlocked;
    self.dequantize(expert, gate.data, up.data, down.data);
  }
  return {gate.array, up.array, down.array};
}

// The panels of one expert as a file holds them: one shard.
std::tuple<NumPy<uint8_t>, NumPy<uint8_t>> expert_panels(const ExpertWeights& self,
                                                         int64_t expert) {
  require_expert(self, expert);
  NewArray<uint8_t> gate_up({self.gate_up_bytes()}), down({self.down_bytes()});
  {
    const nb::gil_scoped_release unlocked;
    self.copy_panels(expert, reinterpret_cast<std::byte*>(gate_up.data),
                     reinterpret_cast<std::byte*>(down.data));
  }
  return {gate_up.array, down.array};
}

// The same into the caller's memory.
void copy_expert_panels(const ExpertWeights& self, int64_t expert, nb::handle gate_up,
                        nb::handle down) {
  require_expert(self, expert);
  const Array to_gate_up(gate_up, "gate_up", 1, Access::kWrite);
  const Array to_down(down, "down", 1, Access::kWrite);
  to_gate_up.require_size(0, self.gate_up_bytes(), "the bytes of gate/up panels");
  to_down.require_size(0, self.down_bytes(), "the bytes of down panels");
  for (const Array* array : {&to_gate_up, &to_down}) array->require_contiguous();
  require_apart(to_gate_up.extent(), {to_down.extent()});
  std::byte* const gate_up_bytes = to_gate_up.as<std::byte>(Kind::kU8);
  std::byte* const down_bytes = to_down.as<std::byte>(Kind::kU8);
  const nb::gil_scoped_release unlocked;
  self.copy_panels(expert, gate_up_bytes, down_bytes);
}

// Takes one of another's, as it is packed there.
void copy_expert(ExpertWeights& self, int64_t expert, const ExpertWeights& source,
                 int64_t source_expert) {
  require_expert(self, expert);
  require_expert(source, source_expert);
  if (!self.lies_as(source))
    fail("source: has other sizes, another format, or was cut for other nodes than these experts");
  const nb::gil_scoped_release unlocked;
  self.copy(expert, source, source_expert);
}

const char* format_of(Format format) { return kernels::info(format).name; }

}  // namespace

void register_weights(nb::module_& m) {
  nb::class_<LinearWeight>(m, "LinearWeight")
      .def(nb::new_(&new_linear), "out_features"_a, "in_features"_a, "format"_a = "float32")
      .def("set_rows", set_rows, "first"_a, "rows_NK"_a.none())
      .def("set_rows_quantized", set_rows_quantized, "first"_a, "q_NK"_a.none(),
           "scales_NG"_a.none())
      .def("set_rows_blocks", set_rows_blocks, "first"_a, "blocks_NB"_a.none())
      .def("dequantize", dequantize_linear)
      .def("panels",
           [](nb::handle self) {
             const auto& weight = nb::cast<const LinearWeight&>(self);
             return nb::ndarray<nb::numpy, const uint8_t>(
                 reinterpret_cast<const uint8_t*>(weight.memory().data()),
                 {static_cast<std::size_t>(weight.size_bytes())}, self);
           })
      .def_prop_ro("shape",
                   [](const LinearWeight& self) {
                     return nb::make_tuple(self.out_features(), self.in_features());
                   })
      .def_prop_ro("format", [](const LinearWeight& self) { return format_of(self.format()); })
      .def_prop_ro("nbytes", &LinearWeight::size_bytes);
  m.def("pack_linear", pack_linear, "weight_NK"_a.none(), "format"_a = nb::none(),
        nb::rv_policy::take_ownership);
  m.def("map_linear", map_linear, "out_features"_a, "in_features"_a, "format"_a, "panels"_a.none(),
        nb::rv_policy::take_ownership);
  m.def("quantize", quantize, "weight_NK"_a.none(), "format"_a);

  nb::class_<ExpertWeights>(m, "ExpertWeights")
      .def(nb::new_(&new_experts), "num_experts"_a, "hidden"_a, "intermediate"_a,
           "format"_a = "float32", "bias"_a = false, "down_format"_a = nb::none())
      .def("set", set_expert, "expert"_a, "gate_FM"_a.none(), "up_FM"_a.none(), "down_MF"_a.none(),
           "gate_bias_F"_a = nb::none(), "up_bias_F"_a = nb::none(), "down_bias_M"_a = nb::none())
      .def("set_quantized", set_expert_quantized, "expert"_a, "gate_q_FM"_a.none(),
           "gate_scales_FG"_a.none(), "up_q_FM"_a.none(), "up_scales_FG"_a.none(),
           "down_q_MF"_a.none(), "down_scales_MG"_a.none(), "gate_bias_F"_a = nb::none(),
           "up_bias_F"_a = nb::none(), "down_bias_M"_a = nb::none())
      .def("set_blocks", set_expert_blocks, "expert"_a, "gate_FB"_a.none(), "up_FB"_a.none(),
           "down_MB"_a.none(), "gate_bias_F"_a = nb::none(), "up_bias_F"_a = nb::none(),
           "down_bias_M"_a = nb::none())
      .def("copy", copy_expert, "expert"_a, "source"_a, "source_expert"_a)
      .def("dequantize", dequantize_expert, "expert"_a)
      .def("panels", expert_panels, "expert"_a)
      .def("copy_panels", copy_expert_panels, "expert"_a, "gate_up"_a.none(), "down"_a.none())
      .def("biases",
           [](nb::handle self) -> nb::object {
             const auto& experts = nb::cast<const ExpertWeights&>(self);
             if (!experts.has_bias()) return nb::none();
             return nb::ndarray<nb::numpy, const float>(
                        experts.gate_bias(0),
                        {static_cast<std::size_t>(experts.num_experts()),
                         static_cast<std::size_t>(2 * experts.intermediate() + experts.hidden())},
                        self)
                 .cast();
           })
      .def_prop_ro("num_experts", &ExpertWeights::num_experts)
      .def_prop_ro("hidden", &ExpertWeights::hidden)
      .def_prop_ro("intermediate", &ExpertWeights::intermediate)
      .def_prop_ro("format",
                   [](const ExpertWeights& self) { return format_of(self.gate_up_format()); })
      .def_prop_ro("down_format",
                   [](const ExpertWeights& self) { return format_of(self.down_format()); })
      .def_prop_ro("nbytes", &ExpertWeights::size_bytes);
  m.def("map_experts", map_experts, "num_experts"_a, "hidden"_a, "intermediate"_a, "format"_a,
        "gate_up"_a.none(), "down"_a.none(), "biases"_a = nb::none(), "down_format"_a = nb::none(),
        nb::rv_policy::take_ownership);
}

}  // namespace inlay::bindings
