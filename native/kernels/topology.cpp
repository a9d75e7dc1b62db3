#include "topology.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <set>

#include "../core/sysfs.h"

namespace inlay::kernels {
namespace {

// Processors of each node by the node's number. Numbers may have holes.
std::map<int, std::vector<int>> processors_of_nodes(const std::string& root) {
  const std::string sysfs = root + "/sys";
  std::map<int, std::vector<int>> nodes;
  for (const int node : numa_nodes(sysfs))
    nodes[node] = parse_processors(first_line(numa_directory(sysfs, node) + "/cpulist"));
  return nodes;
}

int within_quota(const std::string& root, int cores) {
  const double quota = cpu_quota(root);
  return quota <= 0 ? cores : std::clamp(static_cast<int>(std::ceil(quota)), 1, cores);
}

}  // namespace

std::vector<int> Topology::spread_threads(int num_threads) const {
  int total = 0;
  for (const Node& node : nodes) total += node.cores;
  std::vector<int> threads;
  int cores = 0, given = 0;
  for (const Node& node : nodes) {
    cores += node.cores;
    // Rounded up, so that the caller's node, the first, is not the one that gets none.
    const int upto = static_cast<int>((int64_t{num_threads} * cores + total - 1) / total);
    threads.push_back(upto - given);
    given = upto;
  }
  return threads;
}

Topology read_topology(const std::string& root, const std::vector<int>& mask) {
  Topology topology;
  std::vector<int> rest = allowed_processors(root, mask);
  for (const auto& [number, processors] : processors_of_nodes(root)) {
    Topology::Node node{number, {}, 0};
    std::ranges::set_intersection(rest, processors, std::back_inserter(node.processors));
    if (node.processors.empty()) continue;
    std::vector<int> others;
    std::ranges::set_difference(rest, processors, std::back_inserter(others));
    rest = std::move(others);
    topology.nodes.push_back(std::move(node));
  }
  if (topology.nodes.empty()) topology.nodes.push_back({-1, {}, 0});
  // Processors that no node names.
  std::vector<int>& first = topology.nodes.front().processors;
  first.insert(first.end(), rest.begin(), rest.end());
  std::ranges::sort(first);

  int cores = 0;
  for (Topology::Node& node : topology.nodes)
    cores += node.cores = count_cores(root, node.processors);
  topology.usable_cores = within_quota(root, cores);
  topology.pinned = topology.nodes.size() > 1;
  return topology;
}

Topology choose_topology(const std::vector<std::vector<int>>& nodes) {
  const std::map<int, std::vector<int>> memory_nodes = processors_of_nodes("");
  Topology topology;
  std::set<int> used;
  for (const std::vector<int>& list : nodes) {
    const std::set<int> distinct(list.begin(), list.end());
    Topology::Node node{-1, {distinct.begin(), distinct.end()}, 0};
    node.cores = count_cores("", node.processors);
    for (const auto& [number, processors] : memory_nodes)
      if (std::ranges::binary_search(processors, node.processors.front()))
        node.memory_node = number;
    used.insert(distinct.begin(), distinct.end());
    topology.nodes.push_back(std::move(node));
  }
  const std::vector<int> all(used.begin(), used.end());
  topology.usable_cores = within_quota("", count_cores("", all));
  topology.pinned = nodes.size() > 1 || all != affinity_mask();
  return topology;
}

}  // namespace inlay::kernels
