// Transfers over simulated links; the typed door is inlay.sim.rails.
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "../sim/rails.h"
#include "array.h"
#include "module.h"

namespace inlay::bindings {

using namespace nb::literals;

namespace {

using States = std::vector<std::vector<std::tuple<TimeNs, double, bool>>>;

sim::PathChoice parse_choice(std::string_view name) {
  constexpr std::array<std::string_view, 3> kNames = {"engine", "round_robin", "static"};
  for (std::size_t i = 0; i < kNames.size(); ++i)
    if (kNames[i] == name) return static_cast<sim::PathChoice>(i);
  fail("choice: must be engine, round_robin or static, got ", name);
}

nb::bytes times_of(const std::vector<TimeNs>& times) {
  return nb::bytes(times.data(), times.size() * sizeof(TimeNs));
}

nb::tuple run_rails(const std::string& choice, const States& links, std::vector<double> believed,
                    TimeNs delay, bool link_events, TimeNs until, TimeNs bin, uint32_t at_once,
                    nb::handle begun, nb::handle size_bytes) {
  const Array begun_N(begun, "begun", 1);
  const Array bytes_N(size_bytes, "size_bytes", 1);
  const auto* const times = begun_N.as<int64_t>(Kind::kI64);
  const auto* const sizes = bytes_N.as<int64_t>(Kind::kI64);
  begun_N.require_contiguous();
  bytes_N.require_contiguous();
  bytes_N.require_size(0, begun_N.size(0), "as many as there are times");
  std::vector<sim::RailsTransfer> transfers;
  for (int64_t i = 0; i < begun_N.size(0); ++i) {
    if (sizes[i] < 1) fail("size_bytes: must be at least 1, got ", sizes[i]);
    if (i > 0 && times[i] < times[i - 1]) fail("begun: must ascend");
    transfers.push_back({times[i], static_cast<uint64_t>(sizes[i])});
  }
  sim::RailsConfig config{
      parse_choice(choice), {}, std::move(believed), delay, link_events, until, bin, at_once};
  for (const auto& states : links) {
    config.links.emplace_back();
    for (const auto& [since, rate, up] : states) config.links.back().push_back({since, rate, up});
  }
  sim::RailsOutcome outcome;
  {
    const nb::gil_scoped_release unlocked;
    outcome = sim::Rails(std::move(config)).run(transfers);
  }
  std::vector<double> moved;
  for (const auto& bins : outcome.moved) moved.insert(moved.end(), bins.begin(), bins.end());
  return nb::make_tuple(times_of(outcome.begun), times_of(outcome.done),
                        nb::bytes(moved.data(), moved.size() * sizeof(double)), outcome.again);
}

}  // namespace

void register_sim_rails(nb::module_& sim) {
  sim.def("run_rails", run_rails, nb::kw_only(), "choice"_a, "links"_a, "believed"_a, "delay"_a,
          "link_events"_a, "until"_a, "bin"_a, "at_once"_a, "begun"_a, "size_bytes"_a);
}

}  // namespace inlay::bindings
