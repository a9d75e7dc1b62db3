// Row-wise operators: norm, activation, router.
#include <algorithm>
#include <atomic>

#include "isa.h"
#include "operators.h"
#include "thread_pool.h"

namespace inlay::kernels {
namespace {

// Elements of one item, some 2 us of one core; a batch below two of them stays on the caller.
constexpr int64_t kItemElements = int64_t{1} << 14;

// Calls body(first_row, rows, thread) over pieces of `rows` rows of `cols` elements.
template <typename Body>
void over_rows(ThreadPool::Session& session, int64_t rows, int64_t cols, const Body& body) {
  const int64_t step = std::max<int64_t>(1, kItemElements / std::max<int64_t>(1, cols));
  session.parallel_for((rows + step - 1) / step, [&](int64_t item, int thread) {
    body(item * step, std::min(step, rows - item * step), thread);
  });
}

// The halves of each row, gate and up, to one value.
void gated_mul(ConstRows gate_up_T2F, const Activation& activation, Rows out_TF) {
  const KernelTable& table = selected();
  ThreadPool::Session session(ThreadPool::instance());
  over_rows(session, out_TF.rows, 2 * out_TF.cols, [&](int64_t first, int64_t rows, int) {
    const float* gate = gate_up_T2F.row(first);
    table.vectors.gated_rows({gate, gate + out_TF.cols, gate_up_T2F.stride, nullptr, nullptr,
                              activation, rows, out_TF.cols, out_TF.row(first), out_TF.stride});
  });
}

}  // namespace

void rms_norm(ConstRows x_TM, const float* weight_M, float eps, Rows out_TM) {
  const KernelTable& table = selected();
  ThreadPool::Session session(ThreadPool::instance());
  over_rows(session, x_TM.rows, x_TM.cols, [&](int64_t first, int64_t rows, int) {
    table.vectors.norm_rows({x_TM.row(first), x_TM.stride, weight_M, eps, rows, x_TM.cols,
                             out_TM.row(first), out_TM.stride});
  });
}

void silu_mul(ConstRows gate_up_T2F, Rows out_TF) { gated_mul(gate_up_T2F, Activation{}, out_TF); }

void gelu_mul(ConstRows gate_up_T2F, Rows out_TF) {
  // (1 + tanh(y)) / 2 is the sigmoid of 2 y; here y is sqrt(2 / pi) (g + 0.044715 g^3).
  Activation gelu;
  gelu.alpha = 1.5957691216057308f;
  gelu.cubic = 0.044715f;
  gated_mul(gate_up_T2F, gelu, out_TF);
}

bool router_topk(ConstRows logits_TE, int64_t top_k, const RouterRules& rules, int32_t* out_ids_TK,
                 float* out_weights_TK) {
  const KernelTable& table = selected();
  ThreadPool::Session session(ThreadPool::instance());
  session.prepare_thread_scratch(router_scratch(logits_TE.cols));
  std::atomic<bool> undefined{false};
  over_rows(session, logits_TE.rows, 8 * logits_TE.cols, [&](int64_t first, int64_t rows, int t) {
    RouterRows call = {logits_TE.row(first),
                       logits_TE.stride,
                       rows,
                       logits_TE.cols,
                       top_k,
                       rules,
                       out_ids_TK + first * top_k,
                       out_weights_TK + first * top_k,
                       session.thread_scratch(t),
                       false};
    table.vectors.router_rows(call);
    if (call.undefined) undefined.store(true, std::memory_order_relaxed);
  });
  return !undefined.load(std::memory_order_relaxed);
}

void rope_and_store(const RopeRows& rows) {
  const KernelTable& table = selected();
  ThreadPool::Session session(ThreadPool::instance());
  const int64_t cols = 2 * (rows.q_heads + 2 * rows.kv_heads) * rows.head_dim;
  over_rows(session, rows.rows, cols, [&](int64_t first, int64_t count, int) {
    RopeRows part = rows;
    part.qkv += first * rows.qkv_stride;
    part.positions += first;
    part.slots += first;
    part.rows = count;
    table.vectors.rope_rows(part);
  });
}

}  // namespace inlay::kernels
