// What memories and network ports this machine has, and how near they are to each other.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

namespace inlay::transfer {

inline constexpr const char* kSysfs = "/sys";

struct NumaNode {
  int number;
  std::string processors;      // as the kernel lists them: "0-15,32-47"
  std::vector<int> distances;  // to each node, 10 is itself; empty where the system does not say
};

// PCI devices from the root complex down to a device: {"pci0000:17", "0000:17:01.0", ...}; empty
// for what is not on PCI.
using PciPath = std::vector<std::string>;

// Steps from one device up to the nearest bridge above both and down to the other; none where they
// share no root complex.
std::optional<int> pci_hops(const PciPath& a, const PciPath& b);

struct PciDevice {
  PciPath path;
  int numa_node = -1;    // -1: the system does not say
  double bandwidth = 0;  // bytes/s of its link as it is now; 0 unknown

  std::string address() const { return path.empty() ? std::string() : path.back(); }
};

// One network port.
struct Nic {
  enum class Kind {
    kHardware,
    kStacked,  // a bond, bridge or VLAN above hardware
    kVeth,     // one end of a pair: a container's interface, or the host's end of it
    kVirtual,  // bridges without hardware, tunnels, dummies
    kLoopback,
    kRdma,  // a port of /sys/class/infiniband
  };
  struct Address {
    std::string host;  // numeric, IPv6 link-local with its zone
    int prefix;        // bits of the network
  };

  std::string name;  // "eth0", "mlx5_0"; of a card with several RDMA ports "mlx5_0:2"
  Kind kind = Kind::kVirtual;
  bool up = false;       // enabled, with a carrier
  bool member = false;   // of a bond or bridge, which carries its traffic
  double bandwidth = 0;  // bytes/s; 0 where the system does not know (virtual machines, veth)
  PciDevice device;
  std::string interface;           // of an RDMA port: the network interface on it, if any
  std::vector<Address> addresses;  // IPv4, then IPv6, link-local last; RDMA: of its interface

  // Fit to carry slices to other machines, once it has an address.
  bool usable() const;
};
const char* name_of(Nic::Kind kind);

// A GPU that CUDA can use. `index` counts in the order of PCI addresses, which is CUDA's where all
// GPUs are alike or CUDA_DEVICE_ORDER=PCI_BUS_ID.
struct Gpu {
  int index;
  PciDevice device;
};

// The usable ports for a memory, nearest first: [0] those with the fewest PCI hops (for a node's
// memory, the node's), [1] others of its NUMA node, [2] all others, among them those of which the
// system does not say where they are.
struct Tiers {
  std::string location;  // "cpu:0" for NUMA node 0, "cuda:0"
  std::array<std::vector<std::string>, 3> nics;
};

struct Topology {
  std::vector<NumaNode> nodes;  // at least one
  std::vector<Nic> nics;
  std::vector<Gpu> gpus;
  std::vector<Tiers> tiers;  // of all nodes, then of all GPUs
};

// Reads it from a sysfs; addresses are those of this process's network, so only for kSysfs. What
// the system does not tell is left empty. About 1 ms. Throws ArgumentError for a `root` that is no
// directory.
Topology read_topology(const std::string& root = kSysfs);

}  // namespace inlay::transfer
