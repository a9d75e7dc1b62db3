// How many compute threads this process should use.
#include <sched.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "thread_pool.h"

namespace inlay::kernels {
namespace {

std::string first_line(const std::string& file) {
  std::ifstream stream(file);
  std::string line;
  std::getline(stream, line);
  return line;
}

// Physical cores among the processors of our affinity mask; two hardware threads of one core share
// its multipliers, so a second one adds nothing here.
int physical_cores() {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  if (sched_getaffinity(0, sizeof mask, &mask) != 0)
    return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  std::set<std::string> cores;
  int unknown = 0;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &mask)) continue;
    const std::string siblings = first_line("/sys/devices/system/cpu/cpu" + std::to_string(cpu) +
                                            "/topology/thread_siblings_list");
    if (siblings.empty())
      ++unknown;
    else
      cores.insert(siblings);
  }
  return std::max(1, static_cast<int>(cores.size()) + unknown);
}

// Quota in processors of one cgroup directory, or 0 when it sets none.
double quota_v2(const std::string& directory) {
  std::istringstream text(first_line(directory + "/cpu.max"));
  std::string quota;
  double period = 0;
  if (!(text >> quota >> period) || quota == "max" || period <= 0) return 0;
  return std::atof(quota.c_str()) / period;
}

double quota_v1(const std::string& directory) {
  const double quota = std::atof(first_line(directory + "/cpu.cfs_quota_us").c_str());
  const double period = std::atof(first_line(directory + "/cpu.cfs_period_us").c_str());
  return quota > 0 && period > 0 ? quota / period : 0;
}

// The smallest quota on the way from our cgroup up to the root; 0 without one.
double cgroup_quota() {
  double smallest = 0;
  const auto consider = [&smallest](double quota) {
    if (quota > 0 && (smallest == 0 || quota < smallest)) smallest = quota;
  };
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    // Fields: number, controllers ("" for version 2, else such as "cpu,cpuacct"), path.
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool v2 = controllers.empty();
    if (!v2 && controllers != "cpu" && controllers.rfind("cpu,", 0) != 0 &&
        controllers.find(",cpu,") == std::string::npos && !controllers.ends_with(",cpu"))
      continue;
    std::string path = line.substr(second + 1);
    for (;;) {
      if (path == "/") path.clear();
      if (v2)
        consider(quota_v2("/sys/fs/cgroup" + path));
      else
        for (const char* root : {"/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu,cpuacct"})
          consider(quota_v1(root + path));
      if (path.empty()) break;
      path.resize(path.rfind('/') == std::string::npos ? 0 : path.rfind('/'));
    }
  }
  return smallest;
}

}  // namespace

int usable_processors() {
  const int cores = physical_cores();
  const double quota = cgroup_quota();
  if (quota <= 0) return cores;
  return std::clamp(static_cast<int>(std::ceil(quota)), 1, cores);
}

}  // namespace inlay::kernels
