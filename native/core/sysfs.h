// What is read from the small files in which Linux tells of the machine.
#pragma once

#include <string>
#include <vector>

namespace inlay {

// The first line of a file; empty where there is none.
std::string first_line(const std::string& file);

// Numbers of the NUMA nodes that a sysfs tells of, ascending; they may have holes.
std::vector<int> numa_nodes(const std::string& sysfs);
// Where it tells of one.
std::string numa_directory(const std::string& sysfs, int node);

}  // namespace inlay
