// Reading nodes, cores, cpusets and quotas of faked machines, and of this one.
#include "../kernels/topology.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <numeric>
#include <string>
#include <vector>

#include "../kernels/caches.h"
#include "check.h"

namespace {

using inlay::kernels::affinity_mask;
using inlay::kernels::choose_topology;
using inlay::kernels::parse_processors;
using inlay::kernels::read_topology;
using inlay::kernels::Topology;
using Processors = std::vector<int>;

// A directory that looks like / of some machine; gone with the object.
class Machine {
 public:
  Machine() {
    std::string name = std::filesystem::temp_directory_path() / "inlay-topology-XXXXXX";
    CHECK(mkdtemp(name.data()) != nullptr);
    root_ = name;
  }
  ~Machine() { std::filesystem::remove_all(root_); }
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  Machine& write(const std::string& file, const std::string& text) {
    const std::filesystem::path path = root_ + "/" + file;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text << "\n";
    return *this;
  }
  Machine& node(int number, const std::string& processors) {
    return write("sys/devices/system/node/node" + std::to_string(number) + "/cpulist", processors);
  }
  // Hardware threads of one core.
  Machine& core(const std::string& siblings) {
    for (const int processor : parse_processors(siblings))
      write("sys/devices/system/cpu/cpu" + std::to_string(processor) +
                "/topology/thread_siblings_list",
            siblings);
    return *this;
  }
  Topology topology(int processors) const {
    Processors mask(static_cast<std::size_t>(processors));
    std::iota(mask.begin(), mask.end(), 0);
    return topology(mask);
  }
  Topology topology(const Processors& mask) const { return read_topology(root_, mask); }
  int64_t l2_bytes() const { return inlay::kernels::read_l2_bytes(root_); }

 private:
  std::string root_;
};

void test_lists() {
  CHECK(parse_processors("0-2,7") == (Processors{0, 1, 2, 7}));
  CHECK(parse_processors("5") == Processors{5});
  CHECK(parse_processors("8-9,0") == (Processors{0, 8, 9}));
  CHECK(parse_processors("").empty());
  CHECK(parse_processors("none").empty());
}

void test_two_sockets_with_hardware_threads() {
  Machine machine;
  machine.node(0, "0-1,4-5").node(1, "2-3,6-7");
  machine.core("0,4").core("1,5").core("2,6").core("3,7");
  const Topology topology = machine.topology(8);
  CHECK(topology.nodes.size() == 2);
  CHECK(topology.nodes[0].memory_node == 0 && topology.nodes[1].memory_node == 1);
  CHECK(topology.nodes[0].processors == (Processors{0, 1, 4, 5}));
  CHECK(topology.nodes[1].processors == (Processors{2, 3, 6, 7}));
  CHECK(topology.nodes[0].cores == 2 && topology.nodes[1].cores == 2);
  CHECK(topology.usable_cores == 4);
  CHECK(topology.pinned);
}

// Node 0 has memory alone, 1 does not exist, 10 comes after 2; files beside the nodes are no nodes.
void test_holes_and_memory_nodes() {
  Machine machine;
  machine.node(0, "").node(2, "0").node(10, "1-2");
  machine.write("sys/devices/system/node/online", "0,2,10");
  machine.write("sys/devices/system/node/nodes_of_another_kind/cpulist", "0-2");
  const Topology topology = machine.topology(3);
  CHECK(topology.nodes.size() == 2);
  CHECK(topology.nodes[0].memory_node == 2 && topology.nodes[1].memory_node == 10);
  CHECK(topology.nodes[1].cores == 2);
}

void test_affinity_leaves_a_node_out() {
  Machine machine;
  machine.node(0, "0-3").node(1, "4-7");
  const Topology topology = machine.topology(Processors{5, 7});
  CHECK(topology.nodes.size() == 1);
  CHECK(topology.nodes[0].memory_node == 1);
  CHECK(topology.nodes[0].processors == (Processors{5, 7}));
  CHECK(topology.usable_cores == 2);
  CHECK(!topology.pinned);
}

void test_nothing_to_read() {
  const Machine machine;
  const Topology topology = machine.topology(6);
  CHECK(topology.nodes.size() == 1);
  CHECK(topology.nodes[0].memory_node == -1);
  CHECK(topology.nodes[0].cores == 6 && topology.usable_cores == 6);
  CHECK(!topology.pinned);
}

// Processors that no node names stay usable.
void test_a_node_without_its_list() {
  Machine machine;
  machine.node(0, "0-1").write("sys/devices/system/node/node1/meminfo", "");
  const Topology topology = machine.topology(4);
  CHECK(topology.nodes.size() == 1);
  CHECK(topology.nodes[0].processors == (Processors{0, 1, 2, 3}));
}

void test_cpusets() {
  Machine v2;
  v2.node(0, "0-3").node(1, "4-7");
  v2.write("proc/self/cgroup", "0::/jobs/one");
  v2.write("sys/fs/cgroup/jobs/one/cpuset.cpus.effective", "2-5");
  CHECK(v2.topology(8).nodes[0].processors == (Processors{2, 3}));
  CHECK(v2.topology(8).nodes[1].processors == (Processors{4, 5}));
  CHECK(v2.topology(Processors{2, 6}).nodes.size() == 1);
  // A set that has nothing in common with the mask tells of another place: the mask holds.
  CHECK(v2.topology(Processors{0, 1}).usable_cores == 2);

  Machine v1;
  v1.write("proc/self/cgroup", "7:cpuset:/a/b\n3:cpu,cpuacct:/");
  v1.write("sys/fs/cgroup/cpuset/a/cpuset.effective_cpus", "0-2");
  CHECK(v1.topology(8).usable_cores == 3);
}

void test_quotas() {
  Machine v2;
  v2.write("proc/self/cgroup", "0::/jobs/one");
  v2.write("sys/fs/cgroup/jobs/one/cpu.max", "max 100000");
  CHECK(v2.topology(8).usable_cores == 8);
  v2.write("sys/fs/cgroup/jobs/cpu.max", "250000 100000");
  CHECK(v2.topology(8).usable_cores == 3);
  CHECK(v2.topology(2).usable_cores == 2);
  CHECK(v2.topology(8).nodes[0].cores == 8);

  for (const char* mount : {"cpu", "cpu,cpuacct"}) {
    Machine v1;
    v1.write("proc/self/cgroup", "3:cpu,cpuacct:/a");
    v1.write("sys/fs/cgroup/" + std::string(mount) + "/a/cpu.cfs_quota_us", "20000");
    v1.write("sys/fs/cgroup/" + std::string(mount) + "/a/cpu.cfs_period_us", "100000");
    CHECK(v1.topology(8).usable_cores == 1);
  }
}

void test_spreading_threads() {
  Topology topology;
  topology.nodes = {{0, {}, 8}, {1, {}, 8}};
  CHECK(topology.spread_threads(16) == (Processors{8, 8}));
  CHECK(topology.spread_threads(3) == (Processors{2, 1}));
  CHECK(topology.spread_threads(1) == (Processors{1, 0}));
  topology.nodes = {{0, {}, 2}, {1, {}, 6}};
  CHECK(topology.spread_threads(4) == (Processors{1, 3}));
  CHECK(topology.spread_threads(100) == (Processors{25, 75}));
}

void test_chosen_nodes() {
  const Processors mask = affinity_mask();
  const Topology whole = choose_topology({mask, mask});
  CHECK(whole.nodes.size() == 2 && whole.pinned);
  CHECK(whole.nodes[0].processors == mask && whole.nodes[1].processors == mask);
  CHECK(whole.usable_cores == read_topology().usable_cores);  // each core counts once
  CHECK(choose_topology({{mask[0], mask[0]}}).nodes[0].processors == Processors{mask[0]});
}

void test_this_machine() {
  const Topology topology = read_topology();
  CHECK(!topology.nodes.empty());
  CHECK(topology.usable_cores >= 1);
  std::size_t processors = 0;
  for (const Topology::Node& node : topology.nodes) {
    CHECK(node.cores >= 1);
    processors += node.processors.size();
  }
  CHECK(processors <= affinity_mask().size());
}

void test_second_level_cache() {
  Machine machine;
  CHECK(machine.l2_bytes() == 0);
  const std::string cache = "sys/devices/system/cpu/cpu0/cache/index";
  machine.write(cache + "0/level", "1").write(cache + "0/size", "48K");
  CHECK(machine.l2_bytes() == 0);
  machine.write(cache + "2/level", "2").write(cache + "2/size", "2M");
  CHECK(machine.l2_bytes() == 2 << 20);
  machine.write(cache + "2/size", "512K");
  CHECK(machine.l2_bytes() == 512 << 10);
  machine.write(cache + "2/size", "much");
  CHECK(machine.l2_bytes() == 0);
  CHECK(inlay::kernels::l2_bytes() >= 64 << 10);
}

}  // namespace

int main() {
  test_second_level_cache();
  test_lists();
  test_two_sockets_with_hardware_threads();
  test_holes_and_memory_nodes();
  test_affinity_leaves_a_node_out();
  test_nothing_to_read();
  test_a_node_without_its_list();
  test_cpusets();
  test_quotas();
  test_spreading_threads();
  test_chosen_nodes();
  test_this_machine();
}
