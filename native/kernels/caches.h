// Sizes of the processor's caches, which blocks are cut by.
#pragma once

#include <cstdint>
#include <string>

namespace inlay::kernels {

// Bytes of the second-level cache of one core, as the system says below `root`; 0 where it does
// not.
int64_t read_l2_bytes(const std::string& root);

// The same of this machine, read once; 1 MiB where the system does not say.
int64_t l2_bytes();

}  // namespace inlay::kernels
