#include "moe.h"

#include <cmath>
#include <memory>
#include <vector>

#include "adapters.h"
#include "array.h"
#include "module.h"
#include "pending.h"

namespace inlay::bindings {

using namespace nb::literals;
using kernels::ExpertWeights;

kernels::Activation checked_activation(float alpha, float limit, float up_offset) {
  if (!std::isfinite(alpha)) fail("activation.alpha: must be finite, got ", alpha);
  if (!(limit > 0)) fail("activation.limit: must be above 0 (infinity: none), got ", limit);
  if (!std::isfinite(up_offset)) fail("activation.up_offset: must be finite, got ", up_offset);
  return {alpha, limit, up_offset};
}

void check_routing(const kernels::Moe& p) {
  const int64_t num_experts = p.experts->num_experts();
  for (int64_t i = 0; i < p.x_TM.rows * p.top_k; ++i) {
    const int32_t id = p.expert_ids_TK[i];
    const float weight = p.routing_TK[i];
    if (id < 0) continue;
    if (id >= num_experts)
      fail("expert_ids_TK: id ", id, " of token ", i / p.top_k, " is not below the ", num_experts,
           " experts");
    if (!std::isfinite(weight) && (p.expert_mask_E == nullptr || p.expert_mask_E[id] != 0))
      fail("routing_TK: weight ", weight, " of token ", i / p.top_k, " is not finite");
  }
}

namespace {

// Whether what picks the experts is used where it lies, or from a copy.
enum class Routing { kBorrow, kCopy };

template <typename T>
const T* routing_data(const Array& array, Kind kind, Routing routing, std::vector<T>& copy) {
  array.require_contiguous();
  const T* data = array.as<const T>(kind);
  if (routing == Routing::kBorrow) return data;
  int64_t count = 1;
  for (int i = 0; i < array.dims(); ++i) count *= array.size(i);
  copy.assign(data, data + count);
  return copy.data();
}

// The arguments of a call, held and checked.
struct MoeCall {
  MoeCall(nb::handle x_TM, const ExpertWeights& experts, nb::handle expert_ids_TK,
          nb::handle routing_TK, nb::handle out_TM, bool accumulate, nb::handle expert_mask_E,
          kernels::Activation activation, const ExpertWeights* shared, Routing use)
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
    if (!expert_mask_E.is_none()) {
      mask.emplace(expert_mask_E, "expert_mask_E", 1);
      mask->require_size(0, experts.num_experts(), "one value per expert");
    }
    if (shared != nullptr && shared->hidden() != experts.hidden())
      fail("shared: its hidden size is ", shared->hidden(), ", but that of experts is ",
           experts.hidden());
    call = {const_rows(x),
            &experts,
            routing_data(ids, Kind::kI32, use, ids_copy),
            routing_data(routing, Kind::kF32, use, routing_copy),
            ids.size(1),
            mask ? routing_data(*mask, Kind::kU8, use, mask_copy) : nullptr,
            activation,
            shared,
            accumulate,
            rows(out)};
    require_apart(out.extent(),
                  {x.extent(), ids.extent(), routing.extent(), mask ? mask->extent() : Extent{}});
    check_routing(call);
  }

  Array x, ids, routing, out;
  std::optional<Array> mask;
  std::vector<int32_t> ids_copy;
  std::vector<float> routing_copy;
  std::vector<uint8_t> mask_copy;
  kernels::Moe call{};
};

void moe(nb::handle x_TM, const ExpertWeights& experts, nb::handle expert_ids_TK,
         nb::handle routing_TK, nb::handle out_TM, bool accumulate, nb::handle expert_mask_E,
         float alpha, float limit, float up_offset, const ExpertWeights* shared,
         nb::handle adapters) {
  const MoeCall checked(x_TM, experts, expert_ids_TK, routing_TK, out_TM, accumulate, expert_mask_E,
                        checked_activation(alpha, limit, up_offset), shared, Routing::kBorrow);
  const AdapterRows rows(adapters, checked.call.x_TM.rows, experts, shared);
  kernels::Moe call = checked.call;
  call.adapters = rows.rows();
  const nb::gil_scoped_release unlocked;
  kernels::moe(call);
}

// A call that runs later. Views of x and out keep their memory whatever becomes of the objects;
// what picks the experts is copied, because a caller that writes to it too early would send the
// kernel to any address.
struct SubmittedMoe {
  MoeCall checked;
  nb::object experts, shared;
};

Pending submit_moe(nb::handle x_TM, const ExpertWeights& experts, nb::handle expert_ids_TK,
                   nb::handle routing_TK, nb::handle out_TM, bool accumulate,
                   nb::handle expert_mask_E, float alpha, float limit, float up_offset,
                   const ExpertWeights* shared) {
  const std::shared_ptr<SubmittedMoe> kept(
      new SubmittedMoe{{with_own_storage(x_TM), experts, expert_ids_TK, routing_TK,
                        with_own_storage(out_TM), accumulate, expert_mask_E,
                        checked_activation(alpha, limit, up_offset), shared, Routing::kCopy},
                       nb::find(experts),
                       shared == nullptr ? nb::object() : nb::find(*shared)});
  return submit([call = kept->checked.call] { kernels::moe(call); }, kept);
}

}  // namespace

void register_moe(nb::module_& m) {
  const auto define = [&m](const char* name, auto function, const auto&... more) {
    m.def(name, function, "x_TM"_a.none(), "experts"_a, "expert_ids_TK"_a.none(),
          "routing_TK"_a.none(), "out_TM"_a.none(), "accumulate"_a = false,
          "expert_mask_E"_a = nb::none(), "alpha"_a = 1.0f,
          "limit"_a = std::numeric_limits<float>::infinity(), "up_offset"_a = 0.0f,
          "shared"_a.none() = nb::none(), more...);
  };
  define("moe", moe, "adapters"_a = nb::tuple());
  define("submit_moe", submit_moe);
}

}  // namespace inlay::bindings
