// The policies of the transfer engine, for tests that compare them with their references.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "../transfer/rail.h"
#include "../transfer/spray.h"
#include "array.h"
#include "module.h"

namespace inlay::bindings {

using namespace nb::literals;
using transfer::PathEstimate;
using transfer::PathView;
using transfer::Rail;
using transfer::RailActions;
using transfer::RailEvent;

namespace {

RailEvent parse_event(std::string_view name) {
  for (std::size_t i = 0; i < transfer::kNumRailEvents; ++i) {
    const auto event = static_cast<RailEvent>(i);
    if (transfer::name_of(event) == name) return event;
  }
  fail("event: no event of a rail is called '", name, "'");
}

nb::str to_str(std::string_view text) { return nb::str(text.data(), text.size()); }

nb::tuple choose(const std::vector<PathEstimate*>& estimates, const std::vector<double>& penalties,
                 const std::vector<bool>& open, std::size_t remaining_bytes, TimeNs now) {
  if (penalties.size() != estimates.size() || open.size() != estimates.size()) {
    fail("choose: needs as many penalties and openings as estimates");
  }
  std::vector<PathView> paths;
  for (std::size_t i = 0; i < estimates.size(); ++i) {
    paths.push_back({estimates[i], penalties[i], open[i]});
  }
  const transfer::Choice choice = transfer::choose(paths, remaining_bytes, now);
  return nb::make_tuple(choice.path, choice.bytes);
}

void register_spray(nb::module_& m) {
  nb::class_<transfer::Ticket>(m, "Ticket")
      .def_ro("sent", &transfer::Ticket::sent)
      .def_ro("service_s", &transfer::Ticket::service_s)
      .def_ro("predicted_s", &transfer::Ticket::predicted_s)
      .def_ro("alone", &transfer::Ticket::alone);
  nb::class_<PathEstimate>(m, "PathEstimate")
      .def(
          "__init__",
          [](PathEstimate* self, double bandwidth, double base_s, TimeNs now) {
            if (!std::isfinite(bandwidth) || bandwidth <= 0.0) {
              fail("bandwidth: must be finite and above 0, got ", bandwidth);
            }
            if (!std::isfinite(base_s)) fail("base_s: must be finite, got ", base_s);
            new (self) PathEstimate(bandwidth, base_s, now);
          },
          "bandwidth"_a, "base_s"_a, "now"_a)
      .def("posted", &PathEstimate::posted, "size_bytes"_a, "now"_a)
      .def("completed", &PathEstimate::completed, "size_bytes"_a, "ticket"_a, "now"_a)
      .def("dropped", &PathEstimate::dropped, "size_bytes"_a)
      .def("restart", &PathEstimate::restart, "now"_a)
      .def("age", &PathEstimate::age, "now"_a)
      .def("predicted_s", &PathEstimate::predicted_s, "size_bytes"_a, "penalty"_a = 1.0)
      .def("has_room", &PathEstimate::has_room, "size_bytes"_a, "now"_a)
      .def("is_old", &PathEstimate::is_old, "now"_a)
      .def("is_outlier", &PathEstimate::is_outlier, "ticket"_a, "now"_a)
      .def("window_bytes", &PathEstimate::window_bytes, "now"_a)
      .def_prop_ro("slice_bytes", &PathEstimate::slice_bytes)
      .def_prop_ro("inflight_bytes", &PathEstimate::inflight_bytes)
      .def_prop_ro("attempts", &PathEstimate::attempts)
      .def_prop_ro("bandwidth", &PathEstimate::bandwidth)
      .def_prop_ro("beta0_s", &PathEstimate::beta0_s)
      .def_prop_ro("beta1", &PathEstimate::beta1)
      .def_prop_ro("error_s", &PathEstimate::error_s);
  m.def("choose", &choose, "estimates"_a, "penalties"_a, "open"_a, "remaining_bytes"_a, "now"_a);
}

void register_rail(nb::module_& m) {
  nb::class_<Rail>(m, "Rail")
      .def(
          "__init__",
          [](Rail* self, TimeNs now, TimeNs connect_timeout) {
            new (self) Rail(now, {.connect_timeout = connect_timeout});
          },
          "now"_a, "connect_timeout"_a = transfer::RailConfig{}.connect_timeout)
      .def(
          "on",
          [](Rail& self, const std::string& event, TimeNs now, bool others_ready) {
            const RailActions to_do = self.on(parse_event(event), now, others_ready);
            return nb::make_tuple(to_do.close, to_do.connect, to_do.restart, to_do.announce);
          },
          "event"_a, "now"_a, "others_ready"_a = true)
      .def_prop_ro("state",
                   [](const Rail& self) { return to_str(transfer::name_of(self.state())); })
      .def_prop_ro("reason",
                   [](const Rail& self) { return to_str(transfer::name_of(self.reason())); })
      .def_prop_ro("next_tick", &Rail::next_tick)
      .def_prop_ro("retries", &Rail::retries);
  m.def("is_silent", &transfer::is_silent, "unacknowledged"_a, "since_ack"_a,
        "smoothed_round_trip"_a);
}

}  // namespace

void register_transfer_policy(nb::module_& m) {
  register_spray(m);
  register_rail(m);
}

}  // namespace inlay::bindings
