#include <cmath>

#include "array.h"
#include "module.h"
#include "pending.h"

namespace inlay::bindings {

using namespace nb::literals;
using kernels::ExpertWeights;

namespace {

void check_routing(const Array& ids, const Array& routing, int64_t num_experts,
                   const uint8_t* mask) {
  const int32_t* id = ids.as<const int32_t>(Kind::kI32);
  const float* weight = routing.as<const float>(Kind::kF32);
  for (int64_t i = 0; i < ids.size(0) * ids.size(1); ++i) {
    if (id[i] < 0) continue;
    if (id[i] >= num_experts)
      fail("expert_ids_TK: id ", id[i], " of token ", i / ids.size(1), " is not below the ",
           num_experts, " experts");
    if (!std::isfinite(weight[i]) && (mask == nullptr || mask[id[i]] != 0))
      fail("routing_TK: weight ", weight[i], " of token ", i / ids.size(1), " is not finite");
  }
}

kernels::Activation checked_activation(float alpha, float limit, float up_offset) {
  if (!std::isfinite(alpha)) fail("activation.alpha: must be finite, got ", alpha);
  if (!(limit > 0)) fail("activation.limit: must be above 0 (infinity: none), got ", limit);
  if (!std::isfinite(up_offset)) fail("activation.up_offset: must be finite, got ", up_offset);
  return {alpha, limit, up_offset};
}

// The arguments of a call, held and checked.
struct MoeCall {
  MoeCall(nb::handle x_TM, const ExpertWeights& experts, nb::handle expert_ids_TK,
          nb::handle routing_TK, nb::handle out_TM, bool accumulate, nb::handle expert_mask_E,
          kernels::Activation activation, const ExpertWeights* shared)
      : x(x_TM, "x_TM", 2),
        ids(expert_ids_TK, "expert_ids_TK", 2),
        routing(routing_TK, "routing_TK", 2),
        out(out_TM, "out_TM", 2, Access::kWrite) {
    x.require_size(1, experts.hidden(), "the experts' hidden size");
    ids.require_size(0, x.size(0), "tokens of x_TM");
    routing.require_size(0, x.size(0), "tokens of x_TM");
    routing.require_size(1, ids.size(1), "experts per token of expert_ids_TK");
    out.require_size(0, x.size(0), "tokens of x_TM");
    out.require_size(1, experts.hidden(), "the experts' hidden size");
    ids.require_contiguous();
    routing.require_contiguous();
    const uint8_t* mask_data = nullptr;
    if (!expert_mask_E.is_none()) {
      mask.emplace(expert_mask_E, "expert_mask_E", 1);
      mask->require_size(0, experts.num_experts(), "one value per expert");
      mask->require_contiguous();
      mask_data = mask->as<const uint8_t>(Kind::kU8);
    }
    if (shared != nullptr && shared->hidden() != experts.hidden())
      fail("shared: its hidden size is ", shared->hidden(), ", but that of experts is ",
           experts.hidden());
    check_routing(ids, routing, experts.num_experts(), mask_data);
    require_apart(out, x);
    call = {const_rows(x),
            &experts,
            ids.as<const int32_t>(Kind::kI32),
            routing.as<const float>(Kind::kF32),
            ids.size(1),
            mask_data,
            activation,
            shared,
            accumulate,
            rows(out)};
  }

  Array x, ids, routing, out;
  std::optional<Array> mask;
  kernels::Moe call{};
};

void moe(nb::handle x_TM, const ExpertWeights& experts, nb::handle expert_ids_TK,
         nb::handle routing_TK, nb::handle out_TM, bool accumulate, nb::handle expert_mask_E,
         float alpha, float limit, float up_offset, const ExpertWeights* shared) {
  const MoeCall checked(x_TM, experts, expert_ids_TK, routing_TK, out_TM, accumulate, expert_mask_E,
                        checked_activation(alpha, limit, up_offset), shared);
  const nb::gil_scoped_release unlocked;
  kernels::moe(checked.call);
}

// As moe; the arguments are kept until the work is done.
Pending submit_moe(nb::handle x_TM, const ExpertWeights& experts, nb::handle expert_ids_TK,
                   nb::handle routing_TK, nb::handle out_TM, bool accumulate,
                   nb::handle expert_mask_E, float alpha, float limit, float up_offset,
                   const ExpertWeights* shared) {
  const MoeCall checked(x_TM, experts, expert_ids_TK, routing_TK, out_TM, accumulate, expert_mask_E,
                        checked_activation(alpha, limit, up_offset), shared);
  std::vector<nb::object> kept = {nb::find(experts)};
  if (shared != nullptr) kept.push_back(nb::find(*shared));
  for (const nb::handle array : {x_TM, expert_ids_TK, routing_TK, out_TM, expert_mask_E})
    kept.push_back(nb::borrow(array));
  return submit([call = checked.call] { kernels::moe(call); }, std::move(kept));
}

}  // namespace

void register_moe(nb::module_& m) {
  const auto define = [&m](const char* name, auto function) {
    m.def(name, function, "x_TM"_a.none(), "experts"_a, "expert_ids_TK"_a.none(),
          "routing_TK"_a.none(), "out_TM"_a.none(), "accumulate"_a = false,
          "expert_mask_E"_a = nb::none(), "alpha"_a = 1.0f,
          "limit"_a = std::numeric_limits<float>::infinity(), "up_offset"_a = 0.0f,
          "shared"_a.none() = nb::none());
  };
  define("moe", moe);
  define("submit_moe", submit_moe);
}

}  // namespace inlay::bindings
