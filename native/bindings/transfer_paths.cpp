// Paths and the port as plain Python values; inlay.transfer.paths gives them their types.
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include "../transfer/snapshot.h"
#include "transfer.h"

namespace inlay::bindings {

using namespace nb::literals;
using transfer::PathSnapshot;

namespace {

nb::str text(std::string_view value) { return nb::str(value.data(), value.size()); }

nb::dict path_record(const PathSnapshot& path) {
  const transfer::PathCounts& counts = path.counts;
  nb::dict record;
  record["peer"] = text(path.peer);
  record["transport"] = text(path.transport);
  record["name"] = text(path.name);
  record["state"] = text(name_of(path.state));
  record["reason"] = text(path.reason);
  record["read_bytes"] = counts.read_bytes;
  record["written_bytes"] = counts.written_bytes;
  record["slices"] = counts.slices;
  record["inflight_bytes"] = path.inflight_bytes;
  record["inflight_slices"] = path.inflight_slices;
  record["predicted_s"] = counts.recent_predicted_s;
  record["measured_s"] = counts.recent_measured_s;
  record["error_s"] = counts.recent_error_s;
  record["bandwidth_gbs"] =
      path.bandwidth > 0 ? nb::object(nb::float_(path.bandwidth / 1e9)) : nb::none();
  nb::dict retries;
  for (const auto& [status, count] : counts.retries)
    retries[text(transfer::word_of(status))] = count;
  record["retries"] = retries;
  nb::list latencies;
  for (const uint64_t count : counts.latencies) latencies.append(count);
  record["latencies"] = nb::tuple(latencies);
  record["latency_sum_s"] = counts.latency_s;
  record["error_sum_s"] = counts.error_s;
  return record;
}

nb::list paths(const std::shared_ptr<EngineHandle>& engine) {
  std::vector<PathSnapshot> all;
  {
    const transfer::Engine& native = engine->get();
    const WithoutGil unlocked;
    all = native.paths();
  }
  nb::list records;
  for (const PathSnapshot& path : all) records.append(path_record(path));
  return records;
}

void hold(const std::shared_ptr<EngineHandle>& engine, const std::string& peer,
          const std::string& transport, const std::string& name, bool held) {
  transfer::Engine& native = engine->get();
  const WithoutGil unlocked;
  native.hold(peer, transport, name, held);
}

nb::dict port_counts(const std::shared_ptr<EngineHandle>& engine) {
  const transfer::PortCounts& counts = engine->get().port();
  nb::dict refused;
  for (std::size_t i = 0; i < transfer::kNumRefusals; ++i)
    refused[text(name_of(static_cast<transfer::Refusal>(i)))] = counts.refused[i].load();
  nb::dict record;
  record["refused"] = refused;
  record["fenced_lanes"] = counts.fenced.load();
  return record;
}

}  // namespace

void register_transfer_paths(nb::module_& m) {
  m.def("paths", paths, "engine"_a);
  m.def("hold", hold, "engine"_a, "peer"_a, "transport"_a, "name"_a, "held"_a);
  m.def("port_counts", port_counts, "engine"_a);
}

}  // namespace inlay::bindings
