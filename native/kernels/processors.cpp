#include "processors.h"

#include <sched.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <numeric>
#include <set>
#include <sstream>
#include <thread>

#include "../core/sysfs.h"

namespace inlay::kernels {
namespace {

// Directories of our control group and of all groups above it that `controller` may have files in,
// of version 2 and of version 1.
std::vector<std::string> group_directories(const std::string& root, const std::string& controller) {
  std::vector<std::string> directories;
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    // Fields: number, controllers ("" for version 2, else such as "cpu,cpuacct"), path.
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool v2 = controllers.empty();
    if (!v2 && ("," + controllers + ",").find("," + controller + ",") == std::string::npos)
      continue;
    // Version 1 is mounted under the name of one controller, of all of the line, or both.
    std::set<std::string> mounts = {v2 ? "" : "/" + controller, v2 ? "" : "/" + controllers};
    for (std::string path = line.substr(second + 1);; path.resize(path.rfind('/'))) {
      if (path == "/") path.clear();
      for (const std::string& mount : mounts)
        directories.push_back(root + "/sys/fs/cgroup" + mount + path);
      if (path.find('/') == std::string::npos) break;
    }
  }
  return directories;
}

// Quota in processors that one group sets, or 0.
double group_quota(const std::string& directory) {
  std::istringstream text(first_line(directory + "/cpu.max"));
  std::string quota_v2;
  double period = 0;
  if (text >> quota_v2 >> period) return period > 0 ? std::atof(quota_v2.c_str()) / period : 0;
  const double quota = std::atof(first_line(directory + "/cpu.cfs_quota_us").c_str());
  period = std::atof(first_line(directory + "/cpu.cfs_period_us").c_str());
  return quota > 0 && period > 0 ? quota / period : 0;
}

}  // namespace

std::vector<int> parse_processors(const std::string& list) {
  std::set<int> processors;
  std::istringstream parts(list);
  for (std::string part; std::getline(parts, part, ',');) {
    std::istringstream range(part);
    int first = 0, last = 0;
    char dash = 0;
    if (!(range >> first)) continue;
    if (!(range >> dash >> last)) last = first;
    for (int processor = first; processor <= last; ++processor) processors.insert(processor);
  }
  return {processors.begin(), processors.end()};
}

std::vector<int> affinity_mask() {
  std::vector<int> processors;
  cpu_set_t mask;
  CPU_ZERO(&mask);
  if (sched_getaffinity(0, sizeof mask, &mask) == 0)
    for (int processor = 0; processor < CPU_SETSIZE; ++processor)
      if (CPU_ISSET(processor, &mask)) processors.push_back(processor);
  if (processors.empty()) {
    processors.resize(std::max(1u, std::thread::hardware_concurrency()));
    std::iota(processors.begin(), processors.end(), 0);
  }
  return processors;
}

std::vector<int> allowed_processors(const std::string& root, const std::vector<int>& processors) {
  std::vector<int> allowed = processors;
  for (const std::string& directory : group_directories(root, "cpuset"))
    for (const char* file : {"/cpuset.cpus.effective", "/cpuset.effective_cpus"}) {
      const std::vector<int> set = parse_processors(first_line(directory + file));
      std::vector<int> both;
      std::ranges::set_intersection(allowed, set, std::back_inserter(both));
      if (!both.empty()) allowed = std::move(both);
    }
  return allowed;
}

int count_cores(const std::string& root, const std::vector<int>& processors) {
  std::set<std::string> cores;
  int unknown = 0;
  for (const int processor : processors) {
    const std::string siblings =
        first_line(root + "/sys/devices/system/cpu/cpu" + std::to_string(processor) +
                   "/topology/thread_siblings_list");
    if (siblings.empty())
      ++unknown;
    else
      cores.insert(siblings);
  }
  return static_cast<int>(cores.size()) + unknown;
}

double cpu_quota(const std::string& root) {
  double smallest = 0;
  for (const std::string& directory : group_directories(root, "cpu")) {
    const double quota = group_quota(directory);
    if (quota > 0 && (smallest == 0 || quota < smallest)) smallest = quota;
  }
  return smallest;
}

}  // namespace inlay::kernels
