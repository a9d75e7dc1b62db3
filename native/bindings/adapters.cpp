#include "adapters.h"

#include <nanobind/stl/string.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <utility>

#include "module.h"

namespace inlay::bindings {

using namespace nb::literals;
using kernels::ExpertAdapter;
using kernels::ExpertWeights;
using kernels::LinearAdapter;

namespace {

// A pair of matrices, held and checked.
class Pair {
 public:
  Pair(nb::handle a_RK, nb::handle b_NR, float scale) : a_(a_RK, "a_RK", 2), b_(b_NR, "b_NR", 2) {
    if (a_.size(0) < 1) fail("a_RK: its rank must be at least 1, is ", a_.size(0));
    if (a_.size(1) < 1 || b_.size(0) < 1)
      fail("a_RK and b_NR: have shapes ", a_.shape_text(), " and ", b_.shape_text(),
           ", which nothing can be added with");
    b_.require_size(1, a_.size(0), "the rank of a_RK");
    for (const Array* array : {&a_, &b_}) {
      array->require_kind(Kind::kF32);
      array->require_contiguous();
    }
    if (!std::isfinite(scale)) fail("scale: must be finite, got ", scale);
    source_ = {a_.as<const float>(Kind::kF32),
               b_.as<const float>(Kind::kF32),
               a_.size(0),
               a_.size(1),
               b_.size(0),
               scale};
  }
  const kernels::LowRankSource& source() const { return source_; }
  void require_sizes(int64_t in, int64_t out) const {
    a_.require_size(1, in, "the matrix's inner size");
    b_.require_size(0, out, "the matrix's output size");
  }

 private:
  Array a_, b_;
  kernels::LowRankSource source_{};
};

nb::tuple tuple_of(nb::handle object, std::size_t size, const char* name, const char* what) {
  if (!nb::isinstance<nb::tuple>(object) || nb::len(object) != size)
    fail(name, ": each entry must be a tuple of ", what);
  return nb::borrow<nb::tuple>(object);
}

nb::sequence sequence_of(nb::handle object, const char* name) {
  if (!nb::isinstance<nb::sequence>(object)) fail(name, ": must be a sequence");
  return nb::borrow<nb::sequence>(object);
}

template <typename T>
T cast_of(nb::handle object, const char* name, const char* what) {
  T value{};
  if (!nb::try_cast(object, value)) fail(name, ": each entry must be a tuple of ", what);
  return value;
}

LinearAdapter* new_linear_adapter(nb::handle parts) {
  constexpr const char* kWhat = "x_column, out_column, a_RK, b_NR and scale";
  std::vector<std::unique_ptr<Pair>> held;
  std::vector<LinearAdapter::Source> sources;
  for (nb::handle entry : sequence_of(parts, "parts")) {
    const nb::tuple part = tuple_of(entry, 5, "parts", kWhat);
    const auto x_column = cast_of<int64_t>(part[0], "parts", kWhat);
    const auto out_column = cast_of<int64_t>(part[1], "parts", kWhat);
    constexpr int64_t kMost = int64_t{1} << 40;
    if (x_column < 0 || out_column < 0 || x_column > kMost || out_column > kMost)
      fail("parts: columns must be in 0..2^40, got ", x_column, " and ", out_column);
    held.push_back(
        std::make_unique<Pair>(part[2], part[3], cast_of<float>(part[4], "parts", kWhat)));
    sources.push_back({x_column, out_column, held.back()->source()});
  }
  if (sources.empty()) fail("parts: must have at least one entry");
  std::vector<std::pair<int64_t, int64_t>> columns;
  for (const LinearAdapter::Source& s : sources)
    columns.emplace_back(s.out_column, s.out_column + s.matrices.out);
  std::sort(columns.begin(), columns.end());
  for (std::size_t i = 1; i < columns.size(); ++i)
    if (columns[i].first < columns[i - 1].second)
      fail("parts: two of them add to output column ", columns[i].first);
  const nb::gil_scoped_release unlocked;
  return new LinearAdapter(sources);
}

ExpertAdapter* new_expert_adapter(int64_t num_experts, int64_t hidden, int64_t intermediate) {
  for (const auto& [name, size] :
       {std::pair("num_experts", num_experts), {"hidden", hidden}, {"intermediate", intermediate}})
    if (size < 1 || size > (int64_t{1} << 40)) fail(name, ": must be in 1..2^40, got ", size);
  return new ExpertAdapter(num_experts, hidden, intermediate);
}

void set_expert_adapter(ExpertAdapter& self, int64_t expert, const std::string& matrix,
                        nb::handle a_RK, nb::handle b_NR, float scale) {
  if (expert < 0 || expert >= self.num_experts())
    fail("expert: must be in 0..", self.num_experts() - 1, ", got ", expert);
  constexpr const char* kNames[] = {"gate", "up", "down"};
  const auto* const found = std::find(std::begin(kNames), std::end(kNames), matrix);
  if (found == std::end(kNames)) fail("matrix: must be gate, up or down, got ", matrix);
  const auto which = static_cast<ExpertAdapter::Matrix>(found - kNames);
  const Pair pair(a_RK, b_NR, scale);
  const bool down = which == ExpertAdapter::kDown;
  pair.require_sizes(down ? self.intermediate() : self.hidden(),
                     down ? self.hidden() : self.intermediate());
  const nb::gil_scoped_release unlocked;
  self.set(expert, which, pair.source());
}

void require_rows(int64_t first, int64_t end, int64_t after, int64_t rows, const char* name) {
  if (first < after || end < first || end > rows)
    fail(name, ": rows ", first, " to ", end, " do not follow those before within ", rows, " rows");
}

void add_adapters(nb::handle x_TK, nb::handle adapters, nb::handle out_TN) {
  constexpr const char* kWhat = "LinearAdapter, first row and end row";
  const Array x(x_TK, "x_TK", 2);
  const Array out(out_TN, "out_TN", 2, Access::kWrite);
  out.require_size(0, x.size(0), "tokens of x_TK");
  const kernels::ConstRows x_rows = const_rows(x);
  const kernels::Rows out_rows = rows(out);
  require_apart(out.extent(), {x.extent()});
  std::vector<nb::object> held;
  std::vector<kernels::LinearRows> of;
  int64_t after = 0;
  for (nb::handle entry : sequence_of(adapters, "adapters")) {
    const nb::tuple given = tuple_of(entry, 3, "adapters", kWhat);
    const auto* const adapter = cast_of<const LinearAdapter*>(given[0], "adapters", kWhat);
    if (adapter == nullptr) fail("adapters: each entry must be a tuple of ", kWhat);
    const auto first = cast_of<int64_t>(given[1], "adapters", kWhat);
    const auto end = cast_of<int64_t>(given[2], "adapters", kWhat);
    require_rows(first, end, after, x.size(0), "adapters");
    after = end;
    if (adapter->x_columns() > x.size(1) || adapter->out_columns() > out.size(1))
      fail("adapters: one takes ", adapter->x_columns(), " columns and adds to ",
           adapter->out_columns(), ", but x_TK has ", x.size(1), " and out_TN ", out.size(1));
    held.emplace_back(given[0]);
    of.push_back({adapter, first, end});
  }
  const nb::gil_scoped_release unlocked;
  kernels::add_adapters(x_rows, of, out_rows);
}

const ExpertAdapter* checked(nb::handle object, const ExpertWeights* experts) {
  constexpr const char* kWhat =
      "ExpertAdapter or None, the same of shared experts, first row and end row";
  if (object.is_none()) return nullptr;
  const auto* const adapter = cast_of<const ExpertAdapter*>(object, "adapters", kWhat);
  if (experts == nullptr) fail("adapters: one adds to shared experts, but there are none");
  if (adapter->num_experts() != experts->num_experts() || adapter->hidden() != experts->hidden() ||
      adapter->intermediate() != experts->intermediate())
    fail("adapters: one is for ", adapter->num_experts(), " experts of sizes ", adapter->hidden(),
         " and ", adapter->intermediate(), ", but there are ", experts->num_experts(), " of ",
         experts->hidden(), " and ", experts->intermediate());
  return adapter;
}

}  // namespace

AdapterRows::AdapterRows(nb::handle adapters, int64_t tokens, const ExpertWeights& experts,
                         const ExpertWeights* shared) {
  constexpr const char* kWhat = "two ExpertAdapters or None, first row and end row";
  int64_t after = 0;
  for (nb::handle entry : sequence_of(adapters, "adapters")) {
    const nb::tuple given = tuple_of(entry, 4, "adapters", kWhat);
    const auto first = cast_of<int64_t>(given[2], "adapters", kWhat);
    const auto end = cast_of<int64_t>(given[3], "adapters", kWhat);
    require_rows(first, end, after, tokens, "adapters");
    after = end;
    rows_.push_back({checked(given[0], &experts), checked(given[1], shared), first, end});
    held_.emplace_back(given);
  }
}

void register_adapters(nb::module_& m) {
  nb::class_<LinearAdapter>(m, "LinearAdapter")
      .def(nb::new_(&new_linear_adapter), "parts"_a.none())
      .def_prop_ro("nbytes", &LinearAdapter::size_bytes);
  nb::class_<ExpertAdapter>(m, "ExpertAdapter")
      .def(nb::new_(&new_expert_adapter), "num_experts"_a, "hidden"_a, "intermediate"_a)
      .def("set", set_expert_adapter, "expert"_a, "matrix"_a, "a_RK"_a.none(), "b_NR"_a.none(),
           "scale"_a)
      .def_prop_ro("nbytes", &ExpertAdapter::size_bytes);
  m.def("add_adapters", add_adapters, "x_TK"_a.none(), "adapters"_a.none(), "out_TN"_a.none());
}

}  // namespace inlay::bindings
