#include <algorithm>
#include <cstring>
#include <span>

#include "isa.h"
#include "operators.h"
#include "thread_pool.h"

namespace inlay::kernels {
namespace {

// Tokens handled at a time: bounds the activations between the two products (tokens * top_k * F).
constexpr int64_t kChunkTokens = 1024;

// Multiply-adds of one work item, about 5 us of one core: large enough that drawing it is free,
// small enough that two threads finish together.
constexpr int64_t kItemWork = int64_t{1} << 19;

// Panels of one product; they share the reading of its rows.
constexpr int64_t kPanelsAtOnce = 4;

struct Item {
  int64_t expert;
  int64_t first_row;
  int64_t end_row;
  int64_t first_panel;
  int64_t end_panel;
};

// The chosen (token, expert) pairs of a chunk sorted by expert, then token.
struct Grouping {
  int64_t* expert_begin;  // [E + 1] into the pairs
  int32_t* token;         // [pairs], counted from the chunk's first token
  float* weight;          // [pairs]
};

void group_by_expert(const int32_t* ids, const float* routing, int64_t tokens, int64_t top_k,
                     int64_t num_experts, Grouping g) {
  std::fill_n(g.expert_begin, num_experts + 1, int64_t{0});
  for (int64_t i = 0; i < tokens * top_k; ++i)
    if (ids[i] >= 0) ++g.expert_begin[ids[i] + 1];
  for (int64_t e = 0; e < num_experts; ++e) g.expert_begin[e + 1] += g.expert_begin[e];
  // Placing moves each begin to the expert's end, which is the next expert's begin.
  for (int64_t i = 0; i < tokens * top_k; ++i) {
    if (ids[i] < 0) continue;
    const int64_t place = g.expert_begin[ids[i]]++;
    g.token[place] = static_cast<int32_t>(i / top_k);
    g.weight[place] = routing[i];
  }
  for (int64_t e = num_experts; e > 0; --e) g.expert_begin[e] = g.expert_begin[e - 1];
  g.expert_begin[0] = 0;
}

// Cuts every expert's rows and gate/up panels into items of about kItemWork.
int64_t cut_gate_up(const ExpertWeights& experts, const Grouping& g, Item* items) {
  int64_t count = 0;
  for (int64_t e = 0; e < experts.num_experts(); ++e) {
    const int64_t rows = g.expert_begin[e + 1] - g.expert_begin[e];
    if (rows == 0) continue;
    const int64_t blocks = (rows + kMaxRows - 1) / kMaxRows;
    for (int64_t b = 0; b < blocks; ++b) {
      const int64_t first = g.expert_begin[e] + rows * b / blocks;
      const int64_t end = g.expert_begin[e] + rows * (b + 1) / blocks;
      const int64_t panel_work = (end - first) * experts.hidden() * kPanel;
      const int64_t panels_per_item =
          std::max<int64_t>(1, kItemWork / std::max<int64_t>(1, panel_work));
      for (int64_t p = 0; p < experts.gate_up_panels(); p += panels_per_item)
        items[count++] = {e, first, end, p,
                          std::min(p + panels_per_item, experts.gate_up_panels())};
    }
  }
  return count;
}

class MoeChunk {
 public:
  MoeChunk(ThreadPool::Session& session, const KernelTable& table, const ExpertWeights& experts,
           const Grouping& grouping, float* activations, ConstRows x, Rows out, bool accumulate)
      : session_(session),
        table_(table),
        experts_(experts),
        groups_(grouping),
        activations_(activations),
        activation_stride_(experts.gate_up_panels() * ExpertWeights::kHalf),
        x_(x),
        out_(out),
        accumulate_(accumulate) {}

  // activations[pair][F] = silu(gate) * up
  void gate_up(const Item& item, int thread) const {
    float* c = session_.thread_scratch(thread);
    const float* x_rows[kMaxRows];
    const int64_t rows = item.end_row - item.first_row;
    for (int64_t r = 0; r < rows; ++r) x_rows[r] = x_.row(groups_.token[item.first_row + r]);
    for (int64_t first = item.first_panel; first < item.end_panel; first += kPanelsAtOnce) {
      const int64_t panels = std::min(kPanelsAtOnce, item.end_panel - first);
      table_.panel_product({x_rows, rows, experts_.gate_up_panel(item.expert, first), panels,
                            panel_bytes(experts_.hidden(), experts_.dtype()) / 4, experts_.dtype(),
                            experts_.hidden(), kPanel, c});
      for (int64_t i = 0; i < panels; ++i) {
        const float* gate = c + i * rows * kPanel;
        table_.silu_mul_rows({gate, gate + ExpertWeights::kHalf, kPanel, rows, ExpertWeights::kHalf,
                              activations_ + item.first_row * activation_stride_ +
                                  (first + i) * ExpertWeights::kHalf,
                              activation_stride_});
      }
    }
  }

  // A few panels of output columns for tokens [first, end): all experts in ascending order, so
  // every output element has one owner and one order of addition.
  void down(int64_t first_panel, int64_t panels, int64_t first_token, int64_t end_token,
            int thread) const {
    const int64_t column = first_panel * kPanel;
    const int64_t cols = std::min(panels * kPanel, experts_.hidden() - column);
    if (!accumulate_)
      for (int64_t t = first_token; t < end_token; ++t)
        std::memset(out_.row(t) + column, 0, static_cast<std::size_t>(cols) * sizeof(float));
    for (int64_t e = 0; e < experts_.num_experts(); ++e) {
      const int32_t* token = groups_.token;
      const int32_t* expert_end = token + groups_.expert_begin[e + 1];
      const int32_t* begin = std::lower_bound(token + groups_.expert_begin[e], expert_end,
                                              static_cast<int32_t>(first_token));
      const int32_t* end = std::lower_bound(begin, expert_end, static_cast<int32_t>(end_token));
      for (int64_t pair = begin - token; pair < end - token; pair += kMaxRows)
        add_expert(e, first_panel, panels, pair, std::min(kMaxRows, (end - token) - pair), thread);
    }
  }

 private:
  void add_expert(int64_t expert, int64_t first_panel, int64_t panels, int64_t first_pair,
                  int64_t rows, int thread) const {
    float* c = session_.thread_scratch(thread);
    const float* x_rows[kMaxRows];
    float* out_rows[kMaxRows];
    for (int64_t r = 0; r < rows; ++r) {
      x_rows[r] = activations_ + (first_pair + r) * activation_stride_;
      out_rows[r] = out_.row(groups_.token[first_pair + r]) + first_panel * kPanel;
    }
    const int64_t last_cols =
        std::min(kPanel, experts_.hidden() - (first_panel + panels - 1) * kPanel);
    table_.panel_product({x_rows, rows, experts_.down_panel(expert, first_panel), panels,
                          panel_bytes(experts_.intermediate(), experts_.dtype()) / 4,
                          experts_.dtype(), experts_.intermediate(), last_cols, c});
    for (int64_t i = 0; i < panels; ++i) {
      table_.add_weighted_rows({c + i * rows * kPanel, rows, i + 1 == panels ? last_cols : kPanel,
                                groups_.weight + first_pair, out_rows});
      for (int64_t r = 0; r < rows; ++r) out_rows[r] += kPanel;
    }
  }

  ThreadPool::Session& session_;
  const KernelTable& table_;
  const ExpertWeights& experts_;
  const Grouping& groups_;
  float* activations_;
  int64_t activation_stride_;
  ConstRows x_;
  Rows out_;
  bool accumulate_;
};

// Hands out aligned pieces of the session's scratch.
class Carver {
 public:
  explicit Carver(std::byte* memory) : next_(memory) {}
  template <typename T>
  T* take(int64_t count) {
    T* piece = reinterpret_cast<T*>(next_);
    next_ += size<T>(count);
    return piece;
  }
  template <typename T>
  static int64_t size(int64_t count) {
    return (count * static_cast<int64_t>(sizeof(T)) + 63) / 64 * 64;
  }

 private:
  std::byte* next_;
};

}  // namespace

void moe(ConstRows x_TM, const ExpertWeights& experts, const int32_t* expert_ids_TK,
         const float* routing_TK, int64_t top_k, bool accumulate, Rows out_TM) {
  const KernelTable& table = selected();
  ThreadPool::Session session(ThreadPool::instance());
  session.prepare_thread_scratch(kPanelsAtOnce * kMaxRows * kPanel);

  const int64_t chunk = std::min(kChunkTokens, x_TM.rows);
  const int64_t max_pairs = chunk * top_k;
  const int64_t max_items =
      (max_pairs / kMaxRows + std::min(max_pairs, experts.num_experts()) + 1) *
      experts.gate_up_panels();
  const int64_t activation_floats = max_pairs * experts.gate_up_panels() * ExpertWeights::kHalf;
  Carver carver(session.shared_scratch<std::byte>(
      Carver::size<int64_t>(experts.num_experts() + 1) + Carver::size<int32_t>(max_pairs) +
      Carver::size<float>(max_pairs) + Carver::size<Item>(max_items) +
      Carver::size<float>(activation_floats)));
  const Grouping grouping = {carver.take<int64_t>(experts.num_experts() + 1),
                             carver.take<int32_t>(max_pairs), carver.take<float>(max_pairs)};
  Item* items = carver.take<Item>(max_items);
  float* activations = carver.take<float>(activation_floats);

  for (int64_t first = 0; first < x_TM.rows; first += chunk) {
    const int64_t tokens = std::min(chunk, x_TM.rows - first);
    group_by_expert(expert_ids_TK + first * top_k, routing_TK + first * top_k, tokens, top_k,
                    experts.num_experts(), grouping);
    const MoeChunk work(session, table, experts, grouping, activations,
                        {x_TM.row(first), tokens, x_TM.cols, x_TM.stride},
                        {out_TM.row(first), tokens, out_TM.cols, out_TM.stride}, accumulate);
    session.parallel_for(cut_gate_up(experts, grouping, items),
                         [&](int64_t i, int thread) { work.gate_up(items[i], thread); });

    // Few panels and many tokens: cut the tokens too, so that every thread has several items. Many
    // panels: take several at once, they share the reading of the activations.
    const int64_t wanted = 4 * session.num_threads();
    const int64_t token_cuts = std::clamp<int64_t>(
        (wanted + experts.down_panels() - 1) / experts.down_panels(), 1, (tokens + 63) / 64);
    const int64_t at_once = std::clamp<int64_t>(experts.down_panels() / wanted, 1, kPanelsAtOnce);
    const int64_t groups = (experts.down_panels() + at_once - 1) / at_once;
    session.parallel_for(groups * token_cuts, [&](int64_t item, int thread) {
      const int64_t cut = item % token_cuts;
      const int64_t panel = item / token_cuts * at_once;
      work.down(panel, std::min(at_once, experts.down_panels() - panel), tokens * cut / token_cuts,
                tokens * (cut + 1) / token_cuts, thread);
    });
  }
}

}  // namespace inlay::kernels
