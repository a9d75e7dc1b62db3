// Training of routed experts: checks, and what holds the arguments of a forward pass until its
// backward pass.
#include "../kernels/moe_training.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>

#include <cmath>
#include <memory>
#include <tuple>
#include <vector>

#include "array.h"
#include "module.h"
#include "moe.h"

namespace inlay::bindings {

using namespace nb::literals;
using kernels::ExpertWeights;
using kernels::kLoraMatrices;

namespace {

constexpr const char* kLoraNames[] = {"lora.gate_a_ERM", "lora.gate_b_EFR", "lora.up_a_ERM",
                                      "lora.up_b_EFR",   "lora.down_a_ERF", "lora.down_b_EMR"};
constexpr const char* kGradNames[] = {"grad_lora.gate_a_ERM", "grad_lora.gate_b_EFR",
                                      "grad_lora.up_a_ERM",   "grad_lora.up_b_EFR",
                                      "grad_lora.down_a_ERF", "grad_lora.down_b_EMR"};

// The six matrices of a LoRA or of its gradients, held.
class LoraArrays {
 public:
  // `rank`: what it must be; 0 for any.
  LoraArrays(nb::handle six, const char* const (&names)[kLoraMatrices],
             const ExpertWeights& experts, Access access, int64_t rank) {
    const bool written = access == Access::kWrite;
    const char* name = written ? "grad_lora" : "lora";
    if (!nb::isinstance<nb::sequence>(six))
      fail(name, ": must be a sequence of ", static_cast<int>(kLoraMatrices), " matrices");
    const nb::sequence sequence = nb::borrow<nb::sequence>(six);
    if (nb::len(sequence) != kLoraMatrices)
      fail(name, ": has ", nb::len(sequence), " matrices, must have ",
           static_cast<int>(kLoraMatrices));
    for (int i = 0; i < kLoraMatrices; ++i) {
      const nb::object object = sequence[i];
      arrays_.push_back(std::make_unique<Array>(written ? object : with_own_storage(object),
                                                names[i], 3, access));
    }
    rank_ = arrays_[0]->size(1);
    if (rank_ < 1) fail(names[0], ": its rank must be at least 1, is ", rank_);
    if (rank != 0) arrays_[0]->require_size(1, rank, "lora's rank");
    for (int i = 0; i < kLoraMatrices; ++i) {
      Array& array = *arrays_[static_cast<std::size_t>(i)];
      const bool is_a = i % 2 == 0;
      const int64_t inner = i == kernels::kGateA || i == kernels::kUpA || i == kernels::kDownB
                                ? experts.hidden()
                                : experts.intermediate();
      array.require_kind(Kind::kF32);
      array.require_size(0, experts.num_experts(), "one matrix per expert");
      array.require_size(is_a ? 1 : 2, rank_, "the rank");
      array.require_size(is_a ? 2 : 1, inner, "the experts' size");
      array.require_contiguous();
    }
  }

  int64_t rank() const { return rank_; }
  const std::vector<std::unique_ptr<Array>>& arrays() const { return arrays_; }
  template <typename T>
  std::array<T*, kLoraMatrices> data() const {
    std::array<T*, kLoraMatrices> pointers{};
    for (std::size_t i = 0; i < arrays_.size(); ++i) pointers[i] = arrays_[i]->as<T>(Kind::kF32);
    return pointers;
  }

 private:
  std::vector<std::unique_ptr<Array>> arrays_;
  int64_t rank_ = 0;
};

// Keeps what the kernels' SavedMoe refers to.
struct SavedCall {
  nb::object experts;
  std::unique_ptr<LoraArrays> lora;
  std::unique_ptr<kernels::SavedMoe> saved;
};

SavedCall moe_saving(nb::handle x_TM, const ExpertWeights& experts, nb::handle expert_ids_TK,
                     nb::handle routing_TK, nb::handle out_TM, nb::handle lora, float lora_scale,
                     double dropout, uint64_t seed, float alpha, float limit, float up_offset,
                     bool recompute) {
  const Array x(x_TM, "x_TM", 2), ids(expert_ids_TK, "expert_ids_TK", 2),
      routing(routing_TK, "routing_TK", 2), out(out_TM, "out_TM", 2, Access::kWrite);
  x.require_size(1, experts.hidden(), "the experts' hidden size");
  ids.require_size(0, x.size(0), "tokens of x_TM");
  routing.require_size(0, x.size(0), "tokens of x_TM");
  routing.require_size(1, ids.size(1), "experts per token of expert_ids_TK");
  out.require_size(0, x.size(0), "tokens of x_TM");
  out.require_size(1, experts.hidden(), "the experts' hidden size");
  ids.require_contiguous();
  routing.require_contiguous();
  const kernels::Moe call = {const_rows(x),
                             &experts,
                             ids.as<const int32_t>(Kind::kI32),
                             routing.as<const float>(Kind::kF32),
                             ids.size(1),
                             nullptr,
                             checked_activation(alpha, limit, up_offset),
                             nullptr,
                             false,
                             rows(out)};
  require_apart(out.extent(), {x.extent(), ids.extent(), routing.extent()});
  check_routing(call);
  if (!std::isfinite(lora_scale)) fail("lora.scale: must be finite, got ", lora_scale);
  if (!(dropout >= 0 && dropout < 1))
    fail("dropout: must be at least 0 and below 1, got ", dropout);
  SavedCall kept{nb::find(experts), nullptr, nullptr};
  kernels::MoeLora matrices;
  if (!lora.is_none()) {
    kept.lora = std::make_unique<LoraArrays>(lora, kLoraNames, experts, Access::kRead, 0);
    for (const auto& array : kept.lora->arrays()) require_apart(out.extent(), {array->extent()});
    matrices = {kept.lora->data<const float>(), kept.lora->rank(), lora_scale,
                kernels::Dropout(dropout, seed)};
  }
  const nb::gil_scoped_release unlocked;
  kept.saved = std::make_unique<kernels::SavedMoe>(call, matrices, recompute);
  return kept;
}

void moe_backward(SavedCall& kept, nb::handle grad_out_TM, nb::handle grad_x_TM,
                  nb::handle grad_routing_TK, nb::handle grad_lora) {
  kernels::SavedMoe& saved = *kept.saved;
  const ExpertWeights& experts = saved.experts();
  const Array grad_out(grad_out_TM, "grad_out_TM", 2),
      grad_x(grad_x_TM, "grad_x_TM", 2, Access::kWrite),
      grad_routing(grad_routing_TK, "grad_routing_TK", 2, Access::kWrite);
  constexpr const char* kLike = "as in the forward pass";
  grad_out.require_size(0, saved.tokens(), kLike);
  grad_out.require_size(1, experts.hidden(), kLike);
  grad_x.require_size(0, saved.tokens(), kLike);
  grad_x.require_size(1, experts.hidden(), kLike);
  grad_routing.require_size(0, saved.tokens(), kLike);
  grad_routing.require_size(1, saved.top_k(), kLike);
  grad_routing.require_contiguous();
  if (grad_lora.is_none() != (kept.lora == nullptr))
    fail("grad_lora: must be given where the forward pass had a lora, and only there");
  std::unique_ptr<LoraArrays> grads;
  std::vector<const Array*> outputs = {&grad_x, &grad_routing};
  std::vector<const Array*> before = {&grad_out};
  if (kept.lora != nullptr) {
    grads = std::make_unique<LoraArrays>(grad_lora, kGradNames, experts, Access::kWrite,
                                         kept.lora->rank());
    for (const auto& array : grads->arrays()) outputs.push_back(array.get());
    for (const auto& array : kept.lora->arrays()) before.push_back(array.get());
  }
  for (const Array* output : outputs) {
    for (const Array* other : before) require_apart(output->extent(), {other->extent()});
    before.push_back(output);
  }
  const kernels::ConstRows of_out = const_rows(grad_out);
  const kernels::Rows of_x = rows(grad_x);
  float* const of_routing = grad_routing.as<float>(Kind::kF32);
  const kernels::MoeLoraGrads of_lora =
      grads == nullptr ? kernels::MoeLoraGrads{} : grads->data<float>();
  if (saved.used()) fail("saved: its gradients were taken already; run the forward pass again");
  saved.use();
  const nb::gil_scoped_release unlocked;
  saved.gradients(of_out, of_x, of_routing, of_lora);
}

}  // namespace

void register_moe_training(nb::module_& m) {
  nb::class_<SavedCall>(m, "SavedMoe")
      .def_prop_ro("nbytes", [](const SavedCall& kept) { return kept.saved->size_bytes(); })
      .def_prop_ro("x_shape",
                   [](const SavedCall& kept) {
                     return std::tuple(kept.saved->tokens(), kept.saved->experts().hidden());
                   })
      .def_prop_ro("routing_shape",
                   [](const SavedCall& kept) {
                     return std::tuple(kept.saved->tokens(), kept.saved->top_k());
                   })
      .def_prop_ro("lora_rank", [](const SavedCall& kept) { return kept.saved->lora().rank; })
      .def_prop_ro("experts", [](const SavedCall& kept) { return kept.experts; });
  m.def("moe_saving", moe_saving, "x_TM"_a.none(), "experts"_a, "expert_ids_TK"_a.none(),
        "routing_TK"_a.none(), "out_TM"_a.none(), "lora"_a = nb::none(), "lora_scale"_a = 1.0f,
        "dropout"_a = 0.0, "seed"_a = 0, "alpha"_a = 1.0f,
        "limit"_a = std::numeric_limits<float>::infinity(), "up_offset"_a = 0.0f,
        "recompute"_a = false);
  m.def("moe_backward", moe_backward, "saved"_a, "grad_out_TM"_a.none(), "grad_x_TM"_a.none(),
        "grad_routing_TK"_a.none(), "grad_lora"_a = nb::none());
}

}  // namespace inlay::bindings
