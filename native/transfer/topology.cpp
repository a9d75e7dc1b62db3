#include "topology.h"

#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <sstream>
#include <string_view>
#include <tuple>

#include "../core/errors.h"
#include "../core/sysfs.h"
#include "../net/interfaces.h"
#include "../net/socket.h"

namespace inlay::transfer {
namespace {

namespace fs = std::filesystem;

constexpr double kMegabit = 1e6 / 8;
constexpr int kLoopbackType = 772;  // ARPHRD_LOOPBACK
// Drivers that do not know their speed say -1 as a number of 16 or 32 bits.
constexpr double kMaxMegabits = 1e8;

std::optional<long> number(const fs::path& file) {
  const std::string text = first_line(file);
  char* end = nullptr;
  const long value = std::strtol(text.c_str(), &end, 0);
  if (end == text.c_str()) return std::nullopt;
  return value;
}

bool is_there(const fs::path& file) {
  std::error_code error;
  return fs::exists(file, error);
}

// eth2 before eth10.
bool natural_less(const std::string& a, const std::string& b) {
  std::size_t i = 0, j = 0;
  const auto digits = [](const std::string& text, std::size_t from) {
    const std::size_t end = text.find_first_not_of("0123456789", from);
    return text.substr(from, end == std::string::npos ? end : end - from);
  };
  while (i < a.size() && j < b.size()) {
    const std::string x = digits(a, i), y = digits(b, j);
    if (!x.empty() && !y.empty()) {
      if (x != y) return std::tuple(x.size(), x) < std::tuple(y.size(), y);
      i += x.size(), j += y.size();
    } else {
      if (a[i] != b[j]) return a[i] < b[j];
      ++i, ++j;
    }
  }
  return a.size() - i < b.size() - j;
}

// Names in a directory; none where it cannot be read.
std::vector<std::string> list(const fs::path& directory) {
  std::vector<std::string> names;
  std::error_code error;
  fs::directory_iterator entry(directory, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error))
    names.push_back(entry->path().filename());
  std::ranges::sort(names, natural_less);
  return names;
}

// Of an interface in this process's network; empty where it has none, or the system does not tell.
std::string driver_of(const std::string& interface) {
  const net::Descriptor socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!socket.valid() || interface.size() >= IFNAMSIZ) return {};
  ethtool_drvinfo info{};
  info.cmd = ETHTOOL_GDRVINFO;
  ifreq request{};
  interface.copy(request.ifr_name, IFNAMSIZ - 1);
  request.ifr_data = reinterpret_cast<char*>(&info);
  if (ioctl(socket.get(), SIOCETHTOOL, &request) != 0) return {};
  return {info.driver, strnlen(info.driver, sizeof(info.driver))};
}

// "0000:17:01.0"
bool is_pci_address(const std::string& name) {
  return name.find(':') != std::string::npos && name.find('.') != std::string::npos &&
         name.find_first_not_of("0123456789abcdef:.") == std::string::npos;
}

// What a PCI Express link carries, without the headers of its packets: "16.0 GT/s PCIe" x 16.
double link_bandwidth(const fs::path& device) {
  const double transfers = std::strtod(first_line(device / "current_link_speed").c_str(), nullptr);
  const auto width = number(device / "current_link_width");
  if (transfers <= 0 || !width || *width <= 0 || *width > 32) return 0;
  const double coding = transfers < 8 ? 8.0 / 10 : 128.0 / 130;
  return transfers * 1e9 / 8 * coding * static_cast<double>(*width);
}

class Reader {
 public:
  explicit Reader(const fs::path& root) : root_(root) {}

  Topology read() const;

 private:
  std::vector<NumaNode> read_nodes() const;
  // The PCI device that `link` of sysfs points at, or stands on.
  PciDevice read_device(const fs::path& link) const;
  // Of an interface's own device, or of the first one that it is stacked on.
  PciDevice read_carrier(const fs::path& interface, int depth) const;
  bool is_veth(const std::string& name, const fs::path& directory) const;
  Nic read_interface(const std::string& name) const;
  void add_rdma_ports(const std::string& name, std::vector<Nic>& nics) const;
  std::vector<Gpu> read_gpus() const;

  fs::path root_;  // canonical
};

std::vector<NumaNode> Reader::read_nodes() const {
  std::vector<NumaNode> nodes;
  for (const int number : numa_nodes(root_)) {
    const std::string directory = numa_directory(root_, number);
    NumaNode node{number, first_line(directory + "/cpulist"), {}};
    std::istringstream distances(first_line(directory + "/distance"));
    for (int distance; distances >> distance;) node.distances.push_back(distance);
    nodes.push_back(std::move(node));
  }
  if (nodes.empty()) nodes.push_back({0, first_line(root_ / "devices/system/cpu/online"), {}});
  return nodes;
}

PciDevice Reader::read_device(const fs::path& link) const {
  std::error_code error;
  const fs::path target = fs::canonical(link, error);
  if (error) return {};
  const fs::path inside = target.lexically_relative(root_ / "devices");
  if (inside.empty() || *inside.begin() == "..") return {};
  PciDevice found;
  PciPath names;
  fs::path directory = root_ / "devices", device;
  for (const fs::path& part : inside) {
    directory /= part;
    const std::string name = part.string();
    if (names.empty() && !name.starts_with("pci")) continue;
    names.push_back(name);
    if (!is_pci_address(name)) continue;
    found.path = names;  // what comes after, such as virtio2/net/eth0, is no PCI device
    device = directory;
  }
  if (found.path.empty()) return {};
  found.numa_node = static_cast<int>(number(device / "numa_node").value_or(-1));
  found.bandwidth = link_bandwidth(device);
  return found;
}

PciDevice Reader::read_carrier(const fs::path& interface, int depth) const {
  constexpr int kMaxDepth = 4;  // a VLAN on a bridge on a bond on a card
  PciDevice device = read_device(interface / "device");
  if (!device.path.empty() || depth == kMaxDepth) return device;
  for (const std::string& name : list(interface))
    if (name.starts_with("lower_")) {
      device = read_carrier(root_ / "class/net" / name.substr(6), depth + 1);
      if (!device.path.empty()) break;
    }
  return device;
}

// The ends of one in two network namespaces may have the same index: then only its driver tells it
// from a bridge or a dummy. A recorded tree has no drivers of those.
bool Reader::is_veth(const std::string& name, const fs::path& directory) const {
  if (root_ == kSysfs) return driver_of(name) == "veth";
  const auto link = number(directory / "iflink");
  return link.value_or(0) > 0 && link != number(directory / "ifindex");
}

Nic Reader::read_interface(const std::string& name) const {
  const fs::path directory = root_ / "class/net" / name;
  Nic nic;
  nic.name = name;
  nic.device = read_carrier(directory, 0);
  nic.member = is_there(directory / "master");
  const std::string state = first_line(directory / "operstate");
  const bool carrier = number(directory / "carrier") == 1;
  nic.up = state == "up" || (state == "unknown" && carrier);  // loopback and tunnels: "unknown"

  std::string devtype;
  std::ifstream uevent(directory / "uevent");
  for (std::string line; std::getline(uevent, line);)
    if (line.starts_with("DEVTYPE=")) devtype = line.substr(8);
  if (number(directory / "type") == kLoopbackType)
    nic.kind = Nic::Kind::kLoopback;
  else if (is_there(directory / "device"))
    nic.kind = Nic::Kind::kHardware;
  else if (!nic.device.path.empty())
    nic.kind = Nic::Kind::kStacked;
  else if (devtype.empty() && is_veth(name, directory))
    nic.kind = Nic::Kind::kVeth;

  // A veth claims 10 Gbit/s whatever it is.
  const double megabits = static_cast<double>(number(directory / "speed").value_or(-1));
  const bool real = nic.kind == Nic::Kind::kHardware || nic.kind == Nic::Kind::kStacked;
  if (real && megabits > 0 && megabits <= kMaxMegabits && megabits != 65535)
    nic.bandwidth = megabits * kMegabit;
  return nic;
}

void Reader::add_rdma_ports(const std::string& name, std::vector<Nic>& nics) const {
  const fs::path directory = root_ / "class/infiniband" / name;
  const std::vector<std::string> ports = list(directory / "ports");
  const std::vector<std::string> interfaces = list(directory / "device/net");
  const PciDevice device = read_device(directory / "device");
  for (const std::string& port : ports) {
    Nic nic;
    nic.name = ports.size() == 1 ? name : name + ":" + port;
    nic.kind = Nic::Kind::kRdma;
    nic.device = device;
    // "4: ACTIVE", "400 Gb/sec (4X NDR)"
    nic.up = first_line(directory / "ports" / port / "state").starts_with("4:");
    const double gigabits =
        std::strtod(first_line(directory / "ports" / port / "rate").c_str(), nullptr);
    nic.bandwidth = gigabits > 0 ? gigabits * 1000 * kMegabit : 0;
    for (const std::string& interface : interfaces) {
      const auto own = number(directory / "device/net" / interface / "dev_port");
      if (nic.interface.empty() && own.value_or(0) + 1 == std::atol(port.c_str()))
        nic.interface = interface;
    }
    nics.push_back(std::move(nic));
  }
}

std::vector<Gpu> Reader::read_gpus() const {
  constexpr long kNvidia = 0x10de;
  constexpr long kDisplay = 0x03;
  std::vector<Gpu> gpus;
  const fs::path directory = root_ / "bus/pci/devices";
  std::vector<std::string> addresses = list(directory);
  std::ranges::sort(addresses);  // hexadecimal, of one width
  for (const std::string& address : addresses) {
    const long pci_class = number(directory / address / "class").value_or(0);
    if (pci_class >> 16 != kDisplay || number(directory / address / "vendor") != kNvidia) continue;
    gpus.push_back({static_cast<int>(gpus.size()), read_device(directory / address)});
  }
  return gpus;
}

bool is_link_local(const Nic::Address& address) { return address.host.starts_with("fe80"); }

void add_addresses(std::vector<Nic>& nics) {
  std::map<std::string, std::vector<Nic::Address>> found;
  for (auto& [interface, host, prefix] : net::interface_addresses())
    found[interface].push_back({host, prefix});
  for (Nic& nic : nics) {
    const auto entry = found.find(nic.kind == Nic::Kind::kRdma ? nic.interface : nic.name);
    if (entry == found.end()) continue;
    nic.addresses = entry->second;
    std::ranges::stable_partition(nic.addresses, std::not_fn(is_link_local));
  }
}

Tiers tiers_of_node(const NumaNode& node, bool only_node, const std::vector<Nic>& nics) {
  Tiers tiers{"cpu:" + std::to_string(node.number), {}};
  for (const Nic& nic : nics) {
    if (!nic.usable()) continue;
    const bool near = only_node || nic.device.numa_node == node.number;
    tiers.nics[near ? 0 : 2].push_back(nic.name);
  }
  return tiers;
}

Tiers tiers_of_gpu(const Gpu& gpu, bool only_node, const std::vector<Nic>& nics) {
  Tiers tiers{"cuda:" + std::to_string(gpu.index), {}};
  std::optional<int> shortest;
  for (const Nic& nic : nics)
    if (const auto hops = pci_hops(gpu.device.path, nic.device.path); nic.usable() && hops)
      shortest = std::min(*hops, shortest.value_or(*hops));
  for (const Nic& nic : nics) {
    if (!nic.usable()) continue;
    const auto hops = pci_hops(gpu.device.path, nic.device.path);
    const bool same_node =
        only_node || (gpu.device.numa_node >= 0 && nic.device.numa_node == gpu.device.numa_node);
    const std::size_t tier = hops && hops == shortest ? 0 : same_node ? 1 : 2;
    tiers.nics[tier].push_back(nic.name);
  }
  return tiers;
}

Topology Reader::read() const {
  Topology topology;
  topology.nodes = read_nodes();
  for (const std::string& name : list(root_ / "class/net"))
    if (is_there(root_ / "class/net" / name / "ifindex"))  // not the file bonding_masters
      topology.nics.push_back(read_interface(name));
  for (const std::string& name : list(root_ / "class/infiniband"))
    add_rdma_ports(name, topology.nics);
  topology.gpus = read_gpus();
  if (root_ == kSysfs) add_addresses(topology.nics);
  const bool only_node = topology.nodes.size() == 1;
  for (const NumaNode& node : topology.nodes)
    topology.tiers.push_back(tiers_of_node(node, only_node, topology.nics));
  for (const Gpu& gpu : topology.gpus)
    topology.tiers.push_back(tiers_of_gpu(gpu, only_node, topology.nics));
  return topology;
}

}  // namespace

std::optional<int> pci_hops(const PciPath& a, const PciPath& b) {
  const auto [end, other] = std::ranges::mismatch(a, b);
  if (end == a.begin()) return std::nullopt;
  return static_cast<int>((a.end() - end) + (b.end() - other));
}

bool Nic::usable() const {
  const bool carries = kind == Kind::kHardware || kind == Kind::kStacked || kind == Kind::kVeth ||
                       kind == Kind::kRdma;
  return carries && up && !member;
}

const char* name_of(Nic::Kind kind) {
  static constexpr std::array kNames = {"hardware", "stacked",  "veth",
                                        "virtual",  "loopback", "rdma"};
  return kNames[static_cast<std::size_t>(kind)];
}

Topology read_topology(const std::string& root) {
  std::error_code error;
  const fs::path canonical = fs::canonical(root, error);
  if (error || !fs::is_directory(canonical, error)) {
    if (root != kSysfs) throw ArgumentError("root: must be a directory, got '" + root + "'");
    return Reader(root).read();  // a sandbox without sysfs
  }
  return Reader(canonical).read();
}

}  // namespace inlay::transfer
