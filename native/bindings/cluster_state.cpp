#include "cluster_state.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "../cluster/choice.h"
#include "cluster_timing.h"
#include "module.h"

namespace inlay::bindings {

using namespace nb::literals;

namespace {

using cluster::Choice;
using cluster::Columns;

// The queue of a priority; see inlay.cluster.state.
std::size_t level_of(int64_t priority) {
  return priority == 0 ? cluster::kNormal : priority < 0 ? 0 : cluster::kLevels - 1;
}

std::string_view text_of(const nb::str& text) { return text.c_str(); }

void report_load(BoundState& self, std::size_t slot, int64_t waiting, int64_t running,
                 int64_t receiving, int64_t prefill_tokens, int64_t context_tokens,
                 int64_t pages_total, int64_t pages_free, int64_t pages_cached,
                 std::optional<double> find_s, std::optional<double> load_block_s,
                 const SampleRows& samples, double now_s) {
  self.state().report(
      slot,
      {waiting, running, receiving, prefill_tokens, context_tokens, pages_total, pages_free,
       pages_cached, find_s.value_or(cluster::kNever_s), load_block_s.value_or(cluster::kNever_s)},
      samples_of(samples), now_s);
}

void request_dispatched(BoundState& self, const nb::str& id, std::size_t prefill,
                        std::size_t decode, int64_t priority, int64_t num_tokens,
                        int64_t max_output_tokens, int64_t reused_blocks, int64_t loaded_blocks,
                        double ttft_s, double tbt_s, double work_s, double now_s) {
  self.state().dispatched(text_of(id),
                          {prefill, decode, level_of(priority), num_tokens, max_output_tokens,
                           reused_blocks, loaded_blocks, ttft_s, tbt_s, work_s},
                          now_s);
}

nb::list rows_of(const std::vector<const cluster::LiveRequest*>& all) {
  nb::list rows;
  for (const cluster::LiveRequest* one : all)
    rows.append(nb::make_tuple(one->id, one->prefill, one->decode, one->level, one->num_tokens,
                               one->new_tokens, one->work_s, one->outputs, one->pages, one->sent_s,
                               one->reach_s, one->end_s, one->decoding));
  return rows;
}

// Calls `choose` with a request and room for so many columns. What was compared comes last, as an
// array that owns its memory.
template <typename Choose>
nb::tuple choice_of(BoundState& self, int64_t num_tokens, int64_t max_output_tokens,
                    int64_t priority, int64_t store_blocks, double gap_s, nb::handle matches,
                    std::size_t num_columns, Choose choose) {
  const cluster::State& state = self.state();
  const Array found(matches, "matches", 1);
  found.require_contiguous();
  if (state.num_slots() == 0) fail("cluster state: nobody has joined");
  cluster::Request request;
  request.num_tokens = num_tokens;
  request.max_output_tokens = max_output_tokens;
  request.level = level_of(priority);
  request.store_blocks = store_blocks;
  request.gap_s = gap_s;
  request.matches = {found.as<const int32_t>(Kind::kI32), static_cast<std::size_t>(found.size(0))};
  auto columns = std::make_unique<Columns>(num_columns, state.num_slots());
  const Choice choice = choose(state, request, *columns);
  const std::size_t filled = choice.num_columns == 0 ? num_columns : choice.num_columns;
  double* values = columns->row(0);
  const nb::capsule owner(columns.release(),
                          [](void* one) noexcept { delete static_cast<Columns*>(one); });
  const nb::ndarray<nb::numpy, double, nb::ndim<2>> compared(values, {filled, state.num_slots()},
                                                             owner);
  return nb::make_tuple(choice.prefill, choice.decode, choice.reused_blocks, choice.loaded_blocks,
                        choice.source, choice.held_blocks, choice.copy.source,
                        choice.copy.first_block, choice.copy.num_blocks, choice.ttft_s,
                        choice.tbt_s, choice.wait_s, choice.work_s, compared);
}

nb::tuple lowest(BoundState& self, int64_t num_tokens, int64_t max_output_tokens, int64_t priority,
                 int64_t store_blocks, double gap_s, nb::handle matches, double now_s,
                 nb::ndarray<const double, nb::ndim<1>, nb::c_contig> cost) {
  if (cost.shape(0) != self.state().num_slots())
    fail("cost: must have ", self.state().num_slots(), " elements, got ", cost.shape(0));
  return choice_of(self, num_tokens, max_output_tokens, priority, store_blocks, gap_s, matches, 1,
                   [&](const auto& state, const auto& request, Columns& columns) {
                     std::copy(cost.data(), cost.data() + cost.shape(0), columns.row(0));
                     return choose_lowest(state, request, now_s, columns);
                   });
}

nb::tuple least_loaded(BoundState& self, int64_t num_tokens, int64_t max_output_tokens,
                       int64_t priority, int64_t store_blocks, double gap_s, nb::handle matches,
                       double now_s) {
  return choice_of(self, num_tokens, max_output_tokens, priority, store_blocks, gap_s, matches, 2,
                   [&](const auto& state, const auto& request, Columns& columns) {
                     return choose_least_loaded(state, request, now_s, columns);
                   });
}

nb::tuple local_cache_aware(BoundState& self, int64_t num_tokens, int64_t max_output_tokens,
                            int64_t priority, int64_t store_blocks, double gap_s,
                            nb::handle matches, double now_s) {
  return choice_of(self, num_tokens, max_output_tokens, priority, store_blocks, gap_s, matches, 4,
                   [&](const auto& state, const auto& request, Columns& columns) {
                     return choose_local_cache_aware(state, request, now_s, columns);
                   });
}

nb::tuple kv_centric(BoundState& self, int64_t num_tokens, int64_t max_output_tokens,
                     int64_t priority, int64_t store_blocks, double gap_s, nb::handle matches,
                     double now_s, bool copies, double threshold) {
  return choice_of(self, num_tokens, max_output_tokens, priority, store_blocks, gap_s, matches, 6,
                   [&](const auto& state, const auto& request, Columns& columns) {
                     return choose_kv_centric(state, request, now_s, copies, threshold, columns);
                   });
}

nb::tuple inlay_policy(BoundState& self, int64_t num_tokens, int64_t max_output_tokens,
                       int64_t priority, int64_t store_blocks, double gap_s, nb::handle matches,
                       double now_s, double caution, double later, double eviction,
                       double max_pressure, double displaced) {
  return choice_of(self, num_tokens, max_output_tokens, priority, store_blocks, gap_s, matches, 9,
                   [&](const auto& state, const auto& request, Columns& columns) {
                     return choose_inlay(state, request, now_s,
                                         {caution, later, eviction, max_pressure, displaced},
                                         columns);
                   });
}

// What every choice is asked with.
template <typename Function, typename... More>
void def_choice(nb::class_<BoundState>& state, const char* name, Function function,
                const More&... more) {
  state.def(name, function, "num_tokens"_a, "max_output_tokens"_a, "priority"_a, "store_blocks"_a,
            "gap_s"_a, "matches"_a, "now_s"_a, more...);
}

}  // namespace

void register_cluster_state(nb::module_& cluster) {
  nb::class_<BoundState> state(cluster, "State");
  state.def(nb::init<int64_t, int64_t>(), "page_tokens"_a, "page_bytes"_a)
      .def("bind", &BoundState::bind, "numbers"_a)
      .def(
          "join",
          [](BoundState& self, std::size_t slot, cluster::Timing& timing, int64_t chunk) {
            self.state().join(slot, timing, chunk);
          },
          "slot"_a, "timing"_a, "chunk"_a, nb::keep_alive<1, 3>())
      .def(
          "leave", [](BoundState& self, std::size_t slot) { return self.state().leave(slot); },
          "slot"_a)
      .def("report", report_load, "slot"_a, "waiting"_a, "running"_a, "receiving"_a,
           "prefill_tokens"_a, "context_tokens"_a, "pages_total"_a, "pages_free"_a,
           "pages_cached"_a, "find_s"_a.none(), "load_block_s"_a.none(), "samples"_a, "now_s"_a)
      .def("dispatched", request_dispatched, "request_id"_a, "prefill"_a, "decode"_a, "priority"_a,
           "num_tokens"_a, "max_output_tokens"_a, "reused_blocks"_a, "loaded_blocks"_a, "ttft_s"_a,
           "tbt_s"_a, "work_s"_a, "now_s"_a)
      .def(
          "prefill_done",
          [](BoundState& self, const nb::str& id, double now_s) {
            self.state().prefill_done(text_of(id), now_s);
          },
          "request_id"_a, "now_s"_a)
      .def(
          "finished",
          [](BoundState& self, const nb::str& id, std::optional<int64_t> output_tokens) {
            self.state().finished(text_of(id), output_tokens ? &*output_tokens : nullptr);
          },
          "request_id"_a, "output_tokens"_a.none())
      .def(
          "sending",
          [](BoundState& self, std::size_t slot, double size_bytes) {
            self.state().sending(slot, size_bytes);
          },
          "slot"_a, "size_bytes"_a)
      .def(
          "sent",
          [](BoundState& self, std::size_t slot, double size_bytes, std::optional<double> seconds) {
            self.state().sent(slot, size_bytes, seconds.value_or(-1.0));
          },
          "slot"_a, "size_bytes"_a, "seconds"_a.none())
      .def(
          "elapse", [](BoundState& self, double now_s) { self.state().pass(now_s); }, "now_s"_a)
      .def(
          "load_after",
          [](BoundState& self, std::size_t slot, double ahead_s, double now_s) {
            const cluster::LoadAfter after = self.state().load_after(slot, ahead_s, now_s);
            return nb::make_tuple(after.rows, after.context_tokens);
          },
          "slot"_a, "ahead_s"_a, "now_s"_a)
      .def(
          "tbt_at_s",
          [](BoundState& self, std::size_t slot, double rows, double context_tokens) {
            if (slot >= self.state().num_slots())
              fail("slot: there are ", self.state().num_slots(), ", got ", slot);
            return self.state().tbt_at_s(slot, rows, context_tokens);
          },
          "slot"_a, "rows"_a, "context_tokens"_a)
      .def("live", [](BoundState& self) { return rows_of(self.state().live()); })
      .def(
          "best_effort",
          [](BoundState& self, std::size_t slot) {
            return rows_of(self.state().best_effort(slot));
          },
          "slot"_a)
      .def_prop_ro("outputs", [](BoundState& self) { return self.state().outputs(); });
  def_choice(state, "lowest", lowest, "cost"_a);
  def_choice(state, "least_loaded", least_loaded);
  def_choice(state, "local_cache_aware", local_cache_aware);
  def_choice(state, "kv_centric", kv_centric, "copies"_a, "threshold"_a);
  def_choice(state, "inlay", inlay_policy, "caution"_a, "later"_a, "eviction"_a, "max_pressure"_a,
             "displaced"_a);
}

}  // namespace inlay::bindings
