#include "sysfs.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace inlay {

namespace {

constexpr const char* kNodes = "/devices/system/node";

}  // namespace

std::string first_line(const std::string& file) {
  std::ifstream stream(file);
  std::string line;
  std::getline(stream, line);
  return line;
}

std::vector<int> numa_nodes(const std::string& sysfs) {
  std::vector<int> nodes;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(sysfs + kNodes, error)) {
    const std::string name = entry.path().filename();
    if (name.size() > 4 && name.starts_with("node") &&
        name.find_first_not_of("0123456789", 4) == std::string::npos)
      nodes.push_back(std::atoi(name.c_str() + 4));
  }
  std::ranges::sort(nodes);
  return nodes;
}

std::string numa_directory(const std::string& sysfs, int node) {
  return sysfs + kNodes + "/node" + std::to_string(node);
}

}  // namespace inlay
