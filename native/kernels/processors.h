// Which processors this process may use: affinity mask, control groups, hardware threads.
//
// `root` is the directory that holds the system's /proc and /sys; tests name another.
#pragma once

#include <string>
#include <vector>

namespace inlay::kernels {

// "0-2,7" as {0, 1, 2, 7}, ascending; what is not a number is skipped.
std::vector<int> parse_processors(const std::string& list);

// The affinity mask of the calling thread, ascending, never empty.
std::vector<int> affinity_mask();

// Those of `processors` that the cpusets of our control groups allow. The kernel applies cpusets to
// the affinity mask itself, but some sandboxes show all processors there.
std::vector<int> allowed_processors(const std::string& root, const std::vector<int>& processors);

// Physical cores among the processors. Two hardware threads of one core share its multipliers, so
// a second one adds nothing to a kernel.
int count_cores(const std::string& root, const std::vector<int>& processors);

// The smallest CPU quota on the way from our control group up to the root, in processors; 0 without
// one.
double cpu_quota(const std::string& root);

}  // namespace inlay::kernels
