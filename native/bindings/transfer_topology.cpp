// The topology as plain Python values; inlay.transfer.topology gives them their types.
#include <nanobind/stl/string.h>

#include "../transfer/topology.h"
#include "transfer.h"

namespace inlay::bindings {

using namespace nb::literals;
using transfer::Gpu;
using transfer::Nic;
using transfer::Topology;

namespace {

template <typename Items, typename Make>
nb::tuple tuple_of(const Items& items, Make make) {
  nb::list list;
  for (const auto& item : items) list.append(make(item));
  return nb::tuple(list);
}

nb::object text(const std::string& value) { return nb::str(value.c_str(), value.size()); }
nb::object text_or_none(const std::string& value) {
  return value.empty() ? nb::none() : text(value);
}

// 10^9 bytes per second; None for unknown.
nb::object gbs(double bandwidth) {
  if (bandwidth <= 0) return nb::none();
  return nb::float_(bandwidth / 1e9);
}

void put_device(nb::dict& record, const transfer::PciDevice& device) {
  record["pci_path"] = tuple_of(device.path, text);
  record["pci_gbs"] = gbs(device.bandwidth);
  record["numa_node"] = device.numa_node < 0 ? nb::object(nb::none()) : nb::int_(device.numa_node);
}

nb::dict nic_record(const Nic& nic) {
  nb::dict record;
  record["name"] = text(nic.name);
  record["kind"] = name_of(nic.kind);
  record["up"] = nic.up;
  record["member"] = nic.member;
  record["usable"] = nic.usable();
  record["bandwidth_gbs"] = gbs(nic.bandwidth);
  record["interface"] = text_or_none(nic.interface);
  record["addresses"] = tuple_of(nic.addresses, [](const Nic::Address& address) {
    return text(address.host + "/" + std::to_string(address.prefix));
  });
  put_device(record, nic.device);
  return record;
}

nb::dict gpu_record(const Gpu& gpu, const std::vector<Nic>& nics) {
  nb::dict record;
  record["location"] = text("cuda:" + std::to_string(gpu.index));
  put_device(record, gpu.device);
  nb::dict hops;
  for (const Nic& nic : nics)
    if (const auto steps = transfer::pci_hops(gpu.device.path, nic.device.path))
      hops[nic.name.c_str()] = *steps;
  record["nic_hops"] = hops;
  return record;
}

nb::dict read_topology(const std::string& root) {
  Topology topology;
  {
    const WithoutGil unlocked;
    topology = transfer::read_topology(root);
  }
  nb::dict record;
  record["nodes"] = tuple_of(topology.nodes, [](const transfer::NumaNode& node) {
    nb::dict fields;
    fields["number"] = node.number;
    fields["cpus"] = text(node.processors);
    fields["distances"] = tuple_of(node.distances, [](int distance) { return nb::int_(distance); });
    return fields;
  });
  record["nics"] = tuple_of(topology.nics, nic_record);
  record["gpus"] =
      tuple_of(topology.gpus, [&](const Gpu& gpu) { return gpu_record(gpu, topology.nics); });
  nb::dict tiers;
  for (const transfer::Tiers& each : topology.tiers)
    tiers[each.location.c_str()] =
        tuple_of(each.nics, [](const auto& names) { return tuple_of(names, text); });
  record["tiers"] = tiers;
  return record;
}

}  // namespace

void register_transfer_topology(nb::module_& m) { m.def("read_topology", read_topology, "root"_a); }

}  // namespace inlay::bindings
