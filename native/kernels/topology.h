// The NUMA nodes whose processors the pool's threads run on.
#pragma once

#include <string>
#include <vector>

#include "processors.h"

namespace inlay::kernels {

struct Topology {
  struct Node {
    int memory_node;              // the OS's number of it, for AlignedBuffer; -1 unknown
    std::vector<int> processors;  // usable hardware threads, ascending
    int cores;                    // physical cores among them
  };
  std::vector<Node> nodes;  // at least one; each has a processor
  // Physical cores of all nodes, or as many as the CPU quota pays for.
  int usable_cores = 1;
  // Threads stay on their node. Off for one node that has all of our processors.
  bool pinned = false;

  // Threads of each node when `num_threads` are spread in proportion to the cores.
  std::vector<int> spread_threads(int num_threads) const;
};

// This machine's nodes, as far as the process may use them. Nodes without usable processors, such
// as those of memory alone, are left out. Where the OS tells of no nodes there is one.
Topology read_topology(const std::string& root = "",
                       const std::vector<int>& mask = affinity_mask());

// Nodes made of these processors, which affinity_mask() must hold. A processor may be in several.
Topology choose_topology(const std::vector<std::vector<int>>& nodes);

}  // namespace inlay::kernels
