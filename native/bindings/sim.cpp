// The simulator's world; its typed door is inlay.sim.world.
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "../sim/world.h"
#include "cluster_prefix_index.h"
#include "cluster_state.h"
#include "module.h"

namespace inlay::bindings {

using namespace nb::literals;
using sim::World;

namespace {

using Parts = std::vector<std::vector<sim::Features>>;

// Of (blocks, bytes per second that are read and written, latency, eviction), or none.
sim::TierConfig tier_of(const nb::object& tuple, bool hits) {
  if (tuple.is_none()) return {};
  using Fields = std::tuple<uint32_t, double, double, double, std::string>;
  const auto [blocks, read, write, latency_s, eviction] = nb::cast<Fields>(tuple);
  return {blocks, read, write, latency_s, eviction, hits};
}

World* make_world(uint64_t seed, double news_delay_s, double report_s, double link_latency_s,
                  double aim_timeout_s, double come_timeout_s, double copy_timeout_s, bool samples,
                  const nb::object& store) {
  return new World({seed, news_delay_s, report_s, link_latency_s, aim_timeout_s, come_timeout_s,
                    copy_timeout_s, samples, tier_of(store, true)});
}

std::size_t add_instance(World& self, uint32_t num_pages, uint32_t page_tokens,
                         uint32_t max_batch_tokens, uint32_t max_running, uint32_t prefill_chunk,
                         bool decode_first, const Parts& step_time, double noise, uint32_t experts,
                         uint32_t experts_per_token, double token_bytes, uint32_t layers,
                         double out_bytes_per_s, double in_bytes_per_s, const nb::object& host,
                         const nb::object& disk, int write) {
  return self.add(
      {num_pages,
       page_tokens,
       {max_batch_tokens, max_running, prefill_chunk, decode_first},
       sim::StepTime(step_time),
       noise,
       experts,
       experts_per_token,
       token_bytes,
       layers,
       out_bytes_per_s,
       in_bytes_per_s,
       {tier_of(host, true), tier_of(disk, false), static_cast<sim::WriteWhen>(write)}});
}

bool advance_world(World& self, double until_s, SharedIndex* index, SharedIndex* store_index) {
  if (store_index != nullptr)
    return store_index->quick([&](cluster::PrefixIndex& store) {
      return index->quick(
          [&](cluster::PrefixIndex& known) { return self.advance(until_s, &known, &store); });
    });
  if (index == nullptr) return self.advance(until_s, nullptr);
  return index->quick([&](cluster::PrefixIndex& known) { return self.advance(until_s, &known); });
}

// Blocks that an instance has read from a tier, and written to it.
std::pair<uint64_t, uint64_t> tier_blocks(World& self, std::size_t slot, int tier) {
  const sim::Tiers* tiers = self.instance(slot).tiers();
  if (tiers == nullptr) return {0, 0};
  const sim::TierCounts& counts = tiers->counts(static_cast<sim::TierName>(tier));
  return {counts.read_blocks, counts.written_blocks};
}

void submit_request(World& self, uint64_t request, double arrival_s, int32_t priority,
                    uint32_t prompt_tokens, uint32_t output_tokens, const nb::bytes& blocks,
                    std::size_t prefill, std::size_t decode) {
  self.submit({request, arrival_s, priority, prompt_tokens, output_tokens, chain_of(blocks)},
              prefill, decode);
}

nb::tuple report_of(const sim::News& news) {
  nb::list samples;
  for (const sim::StepSample& step : news.samples)
    samples.append(nb::make_tuple(step.prefill_tokens, step.prefill_pairs, step.decodes,
                                  step.decode_context, step.seconds));
  const sim::Load& load = news.load;
  return nb::make_tuple(static_cast<int>(news.kind), news.heard_s, news.slot, load.waiting,
                        load.running, load.receiving, load.prefill_tokens, load.context_tokens,
                        load.pages_free, load.pages_cached, samples, load.find_s,
                        load.load_block_s);
}

// Tuples, the first of which say what they are: what comes in small numbers and at once is looked
// at one by one.
nb::list take_news(World& self, BoundState* state) {
  nb::list all;
  for (const sim::News& news : self.take_news(state == nullptr ? nullptr : &state->state())) {
    const auto kind = static_cast<int>(news.kind);
    switch (news.kind) {
      case sim::News::kReport:
        all.append(report_of(news));
        break;
      case sim::News::kSending:
      case sim::News::kSent:
        all.append(nb::make_tuple(kind, news.heard_s, news.slot, news.bytes, news.seconds));
        break;
      default:
        all.append(nb::make_tuple(kind, news.heard_s, news.request, news.output_tokens));
    }
  }
  return all;
}

template <typename Row>
nb::bytes bytes_of_rows(const std::vector<Row>& rows) {
  return nb::bytes(rows.data(), rows.size() * sizeof(Row));
}

}  // namespace

void register_sim(nb::module_& sim) {
  nb::class_<World>(sim, "World")
      .def(nb::new_(&make_world), "seed"_a, "news_delay_s"_a, "report_s"_a, "link_latency_s"_a,
           "aim_timeout_s"_a, "come_timeout_s"_a, "copy_timeout_s"_a, "samples"_a, "store"_a.none())
      .def("add", add_instance, "num_pages"_a, "page_tokens"_a, "max_batch_tokens"_a,
           "max_running"_a, "prefill_chunk"_a, "decode_first"_a, "step_time"_a, "noise"_a,
           "experts"_a, "experts_per_token"_a, "token_bytes"_a, "layers"_a, "out_bytes_per_s"_a,
           "in_bytes_per_s"_a, "host"_a.none(), "disk"_a.none(), "write"_a)
      .def("advance", advance_world, "until_s"_a, "index"_a.none(), "store_index"_a.none())
      .def("submit", submit_request, "request"_a, "arrival_s"_a, "priority"_a, "prompt_tokens"_a,
           "output_tokens"_a, "blocks"_a, "prefill"_a, "decode"_a)
      .def(
          "copy",
          [](World& self, const nb::bytes& blocks, std::size_t source, std::size_t target) {
            return self.copy(chain_of(blocks), source, target);
          },
          "blocks"_a, "source"_a, "target"_a)
      .def("take_back", &World::take_back, "request"_a, "slot"_a)
      .def(
          "lose",
          [](World& self, std::size_t slot) {
            std::vector<std::pair<uint64_t, uint32_t>> all;
            for (const sim::LostRequest& lost : self.lose(slot))
              all.emplace_back(lost.request, lost.produced);
            return all;
          },
          "slot"_a)
      .def("come_back", &World::come_back, "slot"_a)
      .def("take_news", take_news, "state"_a.none())
      .def("take_finished", &World::take_finished)
      .def("take_outcomes", [](World& self) { return bytes_of_rows(self.take_outcomes()); })
      .def("gap_counts", [](World& self) { return bytes_of_rows(self.gap_counts().bins()); })
      .def("keep_steps", &World::keep_steps)
      .def("take_steps", [](World& self) { return bytes_of_rows(self.take_steps()); })
      .def("audit", &World::audit)
      .def(
          "busy_s", [](World& self, std::size_t slot) { return self.instance(slot).busy_s(); },
          "slot"_a)
      .def(
          "num_steps",
          [](World& self, std::size_t slot) { return self.instance(slot).num_steps(); }, "slot"_a)
      .def(
          "sent_bytes",
          [](World& self, std::size_t slot) {
            self.instance(slot);
            return self.sent_bytes(slot);
          },
          "slot"_a)
      .def("tier_blocks", tier_blocks, "slot"_a, "tier"_a)
      .def(
          "lost_blocks",
          [](World& self, std::size_t slot) {
            const sim::Tiers* tiers = self.instance(slot).tiers();
            return tiers == nullptr ? uint64_t{0} : tiers->lost_blocks();
          },
          "slot"_a)
      .def_prop_ro("now_s", &World::now_s)
      .def_prop_ro("num_live", &World::num_live);
}

}  // namespace inlay::bindings
