#include "../kernels/hand_over.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "adapters.h"
#include "array.h"
#include "module.h"
#include "moe.h"
#include "pending.h"

namespace inlay::bindings {

using namespace nb::literals;
using kernels::ExpertWeights;
using Clock = std::chrono::steady_clock;

namespace {

std::chrono::nanoseconds checked_timeout(double timeout_s) {
  if (!(timeout_s >= 0 && timeout_s <= kMaxTimeout_s))
    fail("timeout_s: must be in 0..", kMaxTimeout_s, ", got ", timeout_s);
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
      std::chrono::duration<double>(timeout_s));
}

double seconds(std::chrono::nanoseconds time) {
  return std::chrono::duration<double>(time).count();
}

// The weights of each layer, and the objects that keep them.
struct Layers {
  explicit Layers(const nb::sequence& layers) {
    for (const nb::handle layer : layers) {
      const ExpertWeights* found = nullptr;
      if (!nb::try_cast(layer, found, false) || found == nullptr)
        fail("layers: element ", weights.size(), " is no ExpertWeights");
      if (!weights.empty() && (found->num_experts() != weights[0]->num_experts() ||
                               found->hidden() != weights[0]->hidden()))
        fail("layers: element ", weights.size(), " has ", found->num_experts(),
             " experts of hidden size ", found->hidden(), ", the first one ",
             weights[0]->num_experts(), " of ", weights[0]->hidden());
      weights.push_back(found);
      objects.push_back(nb::borrow(layer));
    }
    if (weights.empty()) fail("layers: must be at least one");
  }

  int64_t size() const { return static_cast<int64_t>(weights.size()); }

  std::vector<const ExpertWeights*> weights;
  std::vector<nb::object> objects;
};

// All that a walk touches.
struct HeldHandOver {
  HeldHandOver(const nb::sequence& layers_of, nb::handle x_2TM, nb::handle ids_2TK,
               nb::handle routing_2TK, nb::handle out_2TM, nb::handle words_L2,
               kernels::Activation activation)
      : layers(layers_of),
        x(with_own_storage(x_2TM), "x_2TM", 3),
        ids(with_own_storage(ids_2TK), "ids_2TK", 3),
        routing(with_own_storage(routing_2TK), "routing_2TK", 3),
        out(with_own_storage(out_2TM), "out_2TM", 3, Access::kWrite),
        words(with_own_storage(words_L2), "words_L2", 2, Access::kWrite) {
    const ExpertWeights& first = *layers.weights[0];
    for (const Array* array : {&x, &ids, &routing, &out}) {
      array->require_size(0, 2, "slots");
      array->require_size(1, x.size(1), "tokens of x_2TM");
      array->require_contiguous();
    }
    for (const Array* array : {&x, &out})
      array->require_size(2, first.hidden(), "the experts' hidden size");
    routing.require_size(2, ids.size(2), "experts per token of ids_2TK");
    words.require_size(0, layers.size(), "one row per layer");
    words.require_size(1, 2, "asked and answered");
    words.require_contiguous();
    require_apart(out.extent(), {x.extent(), ids.extent(), routing.extent(), words.extent()});
    require_apart(words.extent(), {x.extent(), ids.extent(), routing.extent()});
    hand_over.emplace(
        kernels::HandOverSizes{layers.size(), x.size(1), first.hidden(), ids.size(2),
                               first.num_experts()},
        kernels::HandOverBuffers{x.as<const float>(Kind::kF32), ids.as<const int32_t>(Kind::kI32),
                                 routing.as<const float>(Kind::kF32), out.as<float>(Kind::kF32),
                                 words.as<uint32_t>(Kind::kU32)},
        [this, activation, top_k = ids.size(2)](const kernels::HostExperts& p) {
          kernels::moe({p.x_TM, layers.weights[static_cast<std::size_t>(p.layer)], p.ids_TK,
                        p.routing_TK, top_k, nullptr, activation, nullptr, p.accumulate, p.out_TM,
                        p.adapters});
        });
  }

  Layers layers;
  Array x, ids, routing, out, words;
  std::optional<kernels::HandOver> hand_over;
};

// The same, and what a step adds.
struct HeldStep {
  std::shared_ptr<HeldHandOver> hand_over;
  std::vector<AdapterRows> adapters_L;
};

class HandOver {
 public:
  HandOver(const nb::sequence& layers, nb::handle x_2TM, nb::handle ids_2TK, nb::handle routing_2TK,
           nb::handle out_2TM, nb::handle words_L2, float alpha, float limit, float up_offset)
      : held_(std::make_shared<HeldHandOver>(layers, x_2TM, ids_2TK, routing_2TK, out_2TM, words_L2,
                                             checked_activation(alpha, limit, up_offset))) {}
  // A walk that is under way keeps what it touches, and ends soon.
  ~HandOver() { inner().cancel(); }
  HandOver(const HandOver&) = delete;
  HandOver& operator=(const HandOver&) = delete;

  Pending begin(int64_t rows, nb::handle on_host_LE, nb::handle deferred_T, nb::handle counted_T,
                double timeout_s, nb::handle adapters) {
    const kernels::HandOverSizes& sizes = inner().sizes();
    if (rows < 0 || rows > sizes.tokens) fail("rows: must be in 0..", sizes.tokens, ", got ", rows);
    const Array on_host(on_host_LE, "on_host_LE", 2);
    on_host.require_size(0, sizes.layers, "layers");
    on_host.require_size(1, sizes.experts, "experts");
    on_host.require_contiguous();
    const OfRows deferred(deferred_T, "deferred_T", rows), counted(counted_T, "counted_T", rows);
    const auto held = std::make_shared<HeldStep>(HeldStep{held_, adapters_of(adapters, rows)});
    std::vector<std::span<const kernels::ExpertRows>> adapters_L;
    for (const AdapterRows& layer : held->adapters_L) adapters_L.push_back(layer.rows());
    const kernels::HandOver::Step step = {rows,
                                          on_host.as<const uint8_t>(Kind::kU8),
                                          deferred.as<const int32_t>(Kind::kI32),
                                          counted.as<const uint8_t>(Kind::kU8),
                                          checked_timeout(timeout_s),
                                          adapters_L};
    if (step.deferred_T != nullptr)
      for (int64_t t = 0; t < rows; ++t)
        if (step.deferred_T[t] < 0)
          fail("deferred_T: must be at least 0, got ", step.deferred_T[t], " for token ", t);
    return Pending(inner().begin(step), held);
  }

  void cancel() { inner().cancel(); }

  void ask(int64_t layer) { inner().ask(checked_layer(layer)); }

  void wait_answer(int64_t layer, double timeout_s) {
    checked_layer(layer);
    const Clock::time_point end = Clock::now() + checked_timeout(timeout_s);
    const std::shared_ptr<HeldHandOver> held = held_;  // another thread may drop this object
    for (;;) {
      bool answered = false;
      {
        const nb::gil_scoped_release unlocked;
        const auto left = std::max(Clock::duration(0), end - Clock::now());
        answered =
            held->hand_over->wait_answer(layer, std::min<Clock::duration>(left, kSignalCheck));
      }
      if (answered) return;
      if (PyErr_CheckSignals() != 0) throw nb::python_error();
      if (Clock::now() >= end)
        throw WaitTimeoutError(
            joined("layer ", layer, " was not answered after ", timeout_s, " s"));
    }
  }

  void take_counts(nb::handle out_LE) {
    const Array out(out_LE, "out_LE", 2, Access::kWrite);
    out.require_size(0, inner().sizes().layers, "layers");
    out.require_size(1, inner().sizes().experts, "experts");
    out.require_contiguous();
    inner().take_counts(out.as<uint32_t>(Kind::kU32));
  }

  double immediate_s() const { return seconds(inner().immediate_time()); }
  double deferred_s() const { return seconds(inner().deferred_time()); }

 private:
  // A value for each row of a step, or null for None.
  class OfRows {
   public:
    OfRows(nb::handle object, const char* name, int64_t rows) {
      if (object.is_none()) return;
      array_.emplace(object, name, 1);
      array_->require_size(0, rows, "rows");
      array_->require_contiguous();
    }
    template <typename T>
    T* as(Kind kind) const {
      return array_ ? array_->as<T>(kind) : nullptr;
    }

   private:
    std::optional<Array> array_;
  };

  kernels::HandOver& inner() const { return *held_->hand_over; }

  // Of each layer, or nothing at all.
  std::vector<AdapterRows> adapters_of(nb::handle given, int64_t rows) const {
    std::vector<AdapterRows> adapters_L;
    if (!nb::isinstance<nb::sequence>(given)) fail("adapters: must be a sequence");
    const std::vector<const ExpertWeights*>& layers = held_->layers.weights;
    const std::size_t count = nb::len(given);
    if (count != 0 && count != layers.size())
      fail("adapters: must have an entry for each of the ", layers.size(), " layers, has ", count);
    for (std::size_t layer = 0; layer < count; ++layer)
      adapters_L.emplace_back(given[layer], rows, *layers[layer], nullptr);
    return adapters_L;
  }

  int64_t checked_layer(int64_t layer) const {
    if (layer < 0 || layer >= inner().sizes().layers)
      fail("layer: must be in 0..", inner().sizes().layers - 1, ", got ", layer);
    return layer;
  }

  std::shared_ptr<HeldHandOver> held_;
};

}  // namespace

void register_hand_over(nb::module_& m) {
  nb::class_<HandOver>(m, "HandOver")
      .def(nb::init<const nb::sequence&, nb::handle, nb::handle, nb::handle, nb::handle, nb::handle,
                    float, float, float>(),
           "layers"_a, "x_2TM"_a.none(), "ids_2TK"_a.none(), "routing_2TK"_a.none(),
           "out_2TM"_a.none(), "words_L2"_a.none(), "alpha"_a = 1.0f,
           "limit"_a = std::numeric_limits<float>::infinity(), "up_offset"_a = 0.0f)
      .def("begin", &HandOver::begin, "rows"_a, "on_host_LE"_a.none(),
           "deferred_T"_a.none() = nb::none(), "counted_T"_a.none() = nb::none(),
           "timeout_s"_a = 60.0, "adapters"_a = nb::tuple())
      .def("cancel", &HandOver::cancel)
      .def("ask", &HandOver::ask, "layer"_a)
      .def("wait_answer", &HandOver::wait_answer, "layer"_a, "timeout_s"_a)
      .def("take_counts", &HandOver::take_counts, "out_LE"_a.none())
      .def_prop_ro("immediate_s", &HandOver::immediate_s)
      .def_prop_ro("deferred_s", &HandOver::deferred_s);
}

}  // namespace inlay::bindings
