// Odd corners of sysfs, in small made-up trees. Whole machines are in tests/support/sysfs.
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "../core/errors.h"
#include "../transfer/topology.h"
#include "check.h"

namespace {

using namespace inlay::transfer;
namespace fs = std::filesystem;

// A directory that looks like /sys of some machine; gone with the object.
class Sysfs {
 public:
  Sysfs() {
    std::string name = fs::temp_directory_path() / "inlay-sysfs-XXXXXX";
    CHECK(mkdtemp(name.data()) != nullptr);
    root_ = name;
  }
  ~Sysfs() { fs::remove_all(root_); }
  Sysfs(const Sysfs&) = delete;
  Sysfs& operator=(const Sysfs&) = delete;

  Sysfs& write(const std::string& file, const std::string& text) {
    fs::create_directories((root_ / file).parent_path());
    std::ofstream(root_ / file) << text << "\n";
    return *this;
  }
  Sysfs& link(const std::string& file, const std::string& target) {
    fs::create_directories((root_ / file).parent_path());
    fs::create_symlink(target, root_ / file);
    return *this;
  }
  Sysfs& nodes(int count) {
    for (int node = 0; node < count; ++node)
      write("devices/system/node/node" + std::to_string(node) + "/cpulist", "0");
    return *this;
  }
  // A device at a path below devices/, as the bus lists it.
  Sysfs& pci(const std::string& path, int node) {
    write("devices/" + path + "/numa_node", std::to_string(node));
    return link("bus/pci/devices/" + fs::path(path).filename().string(),
                "../../../devices/" + path);
  }
  Sysfs& gpu(const std::string& path, int node) {
    write("devices/" + path + "/class", "0x030200").write("devices/" + path + "/vendor", "0x10de");
    return pci(path, node);
  }
  Sysfs& nic(const std::string& path, const std::string& name, const std::string& speed = "1000") {
    interface(name, speed);
    return link("class/net/" + name + "/device", "../../../devices/" + path);
  }
  Sysfs& interface(const std::string& name, const std::string& speed) {
    const std::string directory = "class/net/" + name + "/";
    write(directory + "ifindex", "7").write(directory + "iflink", "7");
    write(directory + "operstate", "up").write(directory + "carrier", "1");
    return write(directory + "speed", speed).write(directory + "type", "1");
  }
  Topology topology() const { return read_topology(root_); }

 private:
  fs::path root_;
};

const Nic& find(const Topology& topology, const std::string& name) {
  for (const Nic& nic : topology.nics)
    if (nic.name == name) return nic;
  std::fprintf(stderr, "no %s\n", name.c_str());
  std::exit(1);
}

using Names = std::vector<std::string>;

void hops_need_a_common_root() {
  const PciPath card{"pci0000:17", "0000:17:01.0", "0000:18:00.0"};
  const PciPath neighbour{"pci0000:17", "0000:17:01.0", "0000:18:00.1"};
  const PciPath other_port{"pci0000:17", "0000:17:02.0", "0000:19:00.0"};
  CHECK(pci_hops(card, card) == 0);
  CHECK(pci_hops(card, neighbour) == 2);
  CHECK(pci_hops(card, other_port) == 4);
  CHECK(pci_hops(other_port, card) == 4);
  CHECK(!pci_hops(card, {"pci0000:80", "0000:17:01.0", "0000:18:00.0"}));
  CHECK(!pci_hops(card, {}));
  CHECK(!pci_hops({}, {}));
}

void each_tier_has_its_ports() {
  Sysfs sysfs;
  sysfs.nodes(2).gpu("pci0000:10/0000:10:01.0/0000:11:00.0/0000:12:00.0", 0);
  sysfs.pci("pci0000:10/0000:10:01.0/0000:11:00.0/0000:13:00.0", 0);  // the switch of the GPU
  sysfs.pci("pci0000:10/0000:10:02.0/0000:14:00.0", 0);               // its root complex
  sysfs.pci("pci0000:40/0000:40:01.0/0000:41:00.0", 0);               // its node
  sysfs.pci("pci0000:80/0000:80:01.0/0000:81:00.0", 1);
  sysfs.pci("pci0000:c0/0000:c0:01.0/0000:c1:00.0", -1);
  sysfs.nic("pci0000:10/0000:10:01.0/0000:11:00.0/0000:13:00.0", "eth0");
  sysfs.nic("pci0000:10/0000:10:02.0/0000:14:00.0", "eth1");
  sysfs.nic("pci0000:40/0000:40:01.0/0000:41:00.0", "eth2");
  sysfs.nic("pci0000:80/0000:80:01.0/0000:81:00.0", "eth3");
  sysfs.nic("pci0000:c0/0000:c0:01.0/0000:c1:00.0", "eth10");
  const Topology topology = sysfs.topology();
  CHECK(topology.tiers.size() == 3);
  CHECK(topology.tiers[0].location == "cpu:0");
  CHECK((topology.tiers[0].nics[0] == Names{"eth0", "eth1", "eth2"}));
  CHECK(topology.tiers[0].nics[1].empty());
  CHECK((topology.tiers[0].nics[2] == Names{"eth3", "eth10"}));
  CHECK((topology.tiers[1].nics[0] == Names{"eth3"}));
  CHECK(topology.tiers[2].location == "cuda:0");
  CHECK((topology.tiers[2].nics[0] == Names{"eth0"}));
  CHECK((topology.tiers[2].nics[1] == Names{"eth1", "eth2"}));
  CHECK((topology.tiers[2].nics[2] == Names{"eth3", "eth10"}));
}

void a_gpu_without_a_port_below_its_root_has_no_nearest() {
  Sysfs sysfs;
  sysfs.nodes(2).gpu("pci0000:10/0000:10:01.0", 1).pci("pci0000:20/0000:20:01.0", 1);
  sysfs.nic("pci0000:20/0000:20:01.0", "eth0");
  const Tiers tiers = sysfs.topology().tiers.back();
  CHECK(tiers.nics[0].empty());
  CHECK((tiers.nics[1] == Names{"eth0"}));
}

void stacks_stand_where_their_cards_do() {
  Sysfs sysfs;
  sysfs.nodes(2).pci("pci0000:80/0000:80:01.0/0000:81:00.0", 1);
  sysfs.nic("pci0000:80/0000:80:01.0/0000:81:00.0", "eth0", "25000");
  sysfs.write("class/net/bonding_masters", "bond0").interface("bond0", "50000");
  sysfs.interface("vlan7", "50000").interface("loop", "1000").interface("br0", "10000");
  sysfs.link("class/net/eth0/master", "../bond0").link("class/net/bond0/lower_eth0", "../eth0");
  sysfs.link("class/net/vlan7/lower_bond0", "../bond0");
  sysfs.link("class/net/loop/lower_loop", "../loop");  // what no kernel makes ends, too
  const Topology topology = sysfs.topology();
  CHECK(topology.nics.size() == 5);
  CHECK(find(topology, "eth0").member && !find(topology, "eth0").usable());
  for (const char* name : {"bond0", "vlan7"}) {
    const Nic& nic = find(topology, name);
    CHECK(nic.kind == Nic::Kind::kStacked && nic.usable());
    CHECK(nic.bandwidth == 50e9 / 8);
    CHECK(nic.device.numa_node == 1 && nic.device.address() == "0000:81:00.0");
  }
  CHECK(find(topology, "br0").kind == Nic::Kind::kVirtual && !find(topology, "br0").usable());
  CHECK((topology.tiers[1].nics[0] == Names{"bond0", "vlan7"}));
}

void containers_use_their_veth() {
  Sysfs sysfs;
  sysfs.interface("eth0", "10000").write("class/net/eth0/iflink", "12");
  sysfs.interface("vxlan0", "10000").write("class/net/vxlan0/iflink", "12");
  sysfs.write("class/net/vxlan0/uevent", "DEVTYPE=vxlan\nINTERFACE=vxlan0");
  const Topology topology = sysfs.topology();
  CHECK(find(topology, "eth0").kind == Nic::Kind::kVeth);
  CHECK(find(topology, "eth0").bandwidth == 0);  // it always says 10 Gbit/s
  CHECK(find(topology, "vxlan0").kind == Nic::Kind::kVirtual);
  CHECK((topology.tiers.at(0).nics[0] == Names{"eth0"}));
}

void unknown_speeds_are_zero() {
  Sysfs sysfs;
  int number = 0;
  for (const char* speed : {"-1", "0", "65535", "4294967295", "", "fast", "\x01\xff"}) {
    const std::string address = "0000:00:0" + std::to_string(++number) + ".0";
    sysfs.pci("pci0000:00/" + address, -1);
    sysfs.nic("pci0000:00/" + address, "eth" + std::to_string(number), speed);
  }
  for (const Nic& nic : sysfs.topology().nics) CHECK(nic.bandwidth == 0 && nic.usable());
}

void the_pci_link_has_a_width() {
  Sysfs sysfs;
  sysfs.gpu("pci0000:00/0000:00:01.0", -1).gpu("pci0000:00/0000:00:02.0", -1);
  sysfs.write("devices/pci0000:00/0000:00:01.0/current_link_speed", "16.0 GT/s PCIe")
      .write("devices/pci0000:00/0000:00:01.0/current_link_width", "8");
  sysfs.write("devices/pci0000:00/0000:00:02.0/current_link_speed", "Unknown")
      .write("devices/pci0000:00/0000:00:02.0/current_link_width", "255");
  const Topology topology = sysfs.topology();
  CHECK(topology.gpus.size() == 2);
  CHECK(topology.gpus[0].device.bandwidth > 15.7e9 && topology.gpus[0].device.bandwidth < 15.8e9);
  CHECK(topology.gpus[1].device.bandwidth == 0);
}

void rdma_ports_know_their_interface() {
  Sysfs sysfs;
  const std::string card = "pci0000:80/0000:80:01.0/0000:81:00.0";
  sysfs.pci(card, 0).link("class/infiniband/mlx4_0/device", "../../../devices/" + card);
  for (const char* port : {"1", "2"}) {
    const std::string directory = std::string("class/infiniband/mlx4_0/ports/") + port;
    sysfs.write(directory + "/state", "4: ACTIVE").write(directory + "/rate", "56 Gb/sec (4X FDR)");
  }
  sysfs.write("devices/" + card + "/net/ib0/dev_port", "0");
  sysfs.write("devices/" + card + "/net/ib1/dev_port", "1");
  const Topology topology = sysfs.topology();
  CHECK(find(topology, "mlx4_0:1").interface == "ib0");
  CHECK(find(topology, "mlx4_0:2").interface == "ib1");
  CHECK(find(topology, "mlx4_0:2").bandwidth == 56e9 / 8);
}

void virtual_roots_and_links_out_of_the_tree() {
  Sysfs sysfs;
  sysfs.gpu("pci0000:85/0000:85:05.5/pci10001:80/10001:80:01.0", 0);
  sysfs.interface("eth0", "1000").link("class/net/eth0/device", "/proc/self");
  sysfs.interface("eth1", "1000").link("class/net/eth1/device", "nowhere");
  const Topology topology = sysfs.topology();
  CHECK((topology.gpus.at(0).device.path ==
         PciPath{"pci0000:85", "0000:85:05.5", "pci10001:80", "10001:80:01.0"}));
  CHECK(find(topology, "eth0").device.path.empty());
  CHECK(find(topology, "eth1").kind == Nic::Kind::kVirtual);
}

void nothing_at_all() {
  const Topology topology = Sysfs().topology();
  CHECK(topology.nodes.size() == 1 && topology.nodes[0].number == 0);
  CHECK(topology.nics.empty() && topology.gpus.empty() && topology.tiers.size() == 1);
  try {
    (void)read_topology("/proc/self/cmdline");
    CHECK(false);
  } catch (const inlay::ArgumentError&) {
  }
}

void this_machine() {
  const Topology topology = read_topology();
  CHECK(topology.tiers.size() == topology.nodes.size() + topology.gpus.size());
  for (const Nic& nic : topology.nics)
    if (nic.kind == Nic::Kind::kLoopback && nic.up) {
      CHECK(!nic.usable());
      CHECK(nic.addresses.at(0).host == "127.0.0.1" && nic.addresses[0].prefix == 8);
    }
}

}  // namespace

int main() {
  hops_need_a_common_root();
  each_tier_has_its_ports();
  a_gpu_without_a_port_below_its_root_has_no_nearest();
  stacks_stand_where_their_cards_do();
  containers_use_their_veth();
  unknown_speeds_are_zero();
  the_pci_link_has_a_width();
  rdma_ports_know_their_interface();
  virtual_roots_and_links_out_of_the_tree();
  nothing_at_all();
  this_machine();
}
