#include <cmath>

#include "array.h"
#include "module.h"

namespace inlay::bindings {

using namespace nb::literals;

namespace {

void rms_norm(nb::handle x_TM, nb::handle weight_M, float eps, nb::handle out_TM) {
  const Array x(x_TM, "x_TM", 2);
  const Array out(out_TM, "out_TM", 2, Access::kWrite);
  if (x.size(1) < 1) fail("x_TM: has shape ", x.shape_text(), ", rows must not be empty");
  out.require_size(0, x.size(0), "rows of x_TM");
  out.require_size(1, x.size(1), "columns of x_TM");
  const OptionalVector weight(weight_M, "weight_M", x.size(1));
  if (weight.data() == nullptr) fail("weight_M: must be an array");
  if (!(eps >= 0) || !std::isfinite(eps)) fail("eps: must be finite and not negative, got ", eps);
  const kernels::ConstRows x_rows = const_rows(x);
  const kernels::Rows out_rows = rows(out);
  require_apart(out.extent(), {weight.extent()});
  if (x.data() != out.data() || x.stride(0) != out.stride(0))
    require_apart(out.extent(), {x.extent()});
  const nb::gil_scoped_release unlocked;
  kernels::rms_norm(x_rows, weight.data(), eps, out_rows);
}

template <void (*kGated)(kernels::ConstRows, kernels::Rows)>
void gated_mul(nb::handle gate_up_T2F, nb::handle out_TF) {
  const Array gate_up(gate_up_T2F, "gate_up_T2F", 2);
  const Array out(out_TF, "out_TF", 2, Access::kWrite);
  out.require_size(0, gate_up.size(0), "rows of gate_up_T2F");
  gate_up.require_size(1, 2 * out.size(1), "twice the columns of out_TF");
  const kernels::ConstRows in_rows = const_rows(gate_up);
  const kernels::Rows out_rows = rows(out);
  // In place over the gate half is fine: an element is read before it is written.
  if (gate_up.data() != out.data() || gate_up.stride(0) != out.stride(0))
    require_apart(out.extent(), {gate_up.extent()});
  const nb::gil_scoped_release unlocked;
  kGated(in_rows, out_rows);
}

void router_topk(nb::handle logits_TE, int64_t top_k, bool normalize, nb::handle out_ids_TK,
                 nb::handle out_weights_TK, bool sigmoid, nb::handle correction_E, int64_t groups,
                 int64_t groups_per_token, bool best_two, float scale) {
  const Array logits(logits_TE, "logits_TE", 2);
  const Array ids(out_ids_TK, "out_ids_TK", 2, Access::kWrite);
  const Array weights(out_weights_TK, "out_weights_TK", 2, Access::kWrite);
  const int64_t experts = logits.size(1);
  const OptionalVector correction(correction_E, "correction_E", experts);
  if (groups < 1 || groups > experts || experts % groups != 0)
    fail("groups: must divide the ", experts, " experts of logits_TE, got ", groups);
  if (groups_per_token < 1 || groups_per_token > groups)
    fail("groups_per_token: must be in 1..", groups, " (groups), got ", groups_per_token);
  if (best_two && groups > groups_per_token && experts < 2 * groups)
    fail("groups: ", groups, " of ", experts, " experts leave groups of one, whose best two count");
  const int64_t open = experts / groups * groups_per_token;
  if (top_k < 1 || top_k > open)
    fail("top_k: must be in 1..", open, " (the experts of groups_per_token), got ", top_k);
  if (!std::isfinite(scale)) fail("scale: must be finite, got ", scale);
  for (const Array* out : {&ids, &weights}) {
    out->require_size(0, logits.size(0), "tokens of logits_TE");
    out->require_size(1, top_k, "top_k");
    out->require_contiguous();
  }
  const kernels::ConstRows in_rows = const_rows(logits);
  int32_t* id = ids.as<int32_t>(Kind::kI32);
  float* weight = weights.as<float>(Kind::kF32);
  require_apart(ids.extent(), {logits.extent(), weights.extent(), correction.extent()});
  require_apart(weights.extent(), {logits.extent(), correction.extent()});
  kernels::RouterRules rules;
  rules.sigmoid = sigmoid;
  rules.normalize = normalize;
  rules.best_two = best_two;
  rules.groups = groups;
  rules.groups_per_token = groups_per_token;
  rules.scale = scale;
  rules.correction = correction.data();
  bool good = true;
  {
    const nb::gil_scoped_release unlocked;
    good = kernels::router_topk(in_rows, top_k, rules, id, weight);
  }
  if (!good)
    fail(sigmoid ? "logits_TE: a row holds a NaN"
                 : "logits_TE: a row has no softmax: it holds a NaN or +infinity, or -infinity "
                   "alone");
}

}  // namespace

void register_rows(nb::module_& m) {
  m.def("rms_norm", rms_norm, "x_TM"_a.none(), "weight_M"_a.none(), "eps"_a, "out_TM"_a.none());
  m.def("silu_mul", gated_mul<kernels::silu_mul>, "gate_up_T2F"_a.none(), "out_TF"_a.none());
  m.def("gelu_mul", gated_mul<kernels::gelu_mul>, "gate_up_T2F"_a.none(), "out_TF"_a.none());
  m.def("router_topk", router_topk, "logits_TE"_a.none(), "top_k"_a, "normalize"_a,
        "out_ids_TK"_a.none(), "out_weights_TK"_a.none(), "sigmoid"_a = false,
        "correction_E"_a.none() = nb::none(), "groups"_a = 1, "groups_per_token"_a = 1,
        "best_two"_a = false, "scale"_a = 1.0f);
}

}  // namespace inlay::bindings
