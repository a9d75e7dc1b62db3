// Which kernel variant runs: named by the user or the best that processor and OS allow.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "kernel_table.h"

namespace inlay::kernels {

struct IsaVariant {
  const KernelTable* table;
  std::string problem;  // why it cannot run here; empty if it can
};

// All that this build contains, slowest first. Asks the OS for permission where a variant needs it.
std::vector<IsaVariant> isa_variants();

// Variants that this build contains and this machine can run, slowest first.
std::vector<std::string> available_isas();

// Variants that this build contains, slowest first.
std::vector<std::string> compiled_isas();

// The table in use. The first call chooses: the name given to request_isa, else the best available.
// Throws ArgumentError when the requested one is unknown or beyond this processor.
const KernelTable& selected();

// Asks for a variant by name; an empty name asks for the best. Checked by the next selected(), so
// that importing the module never fails.
void request_isa(std::string_view name);

// Processor features that matter to kernels, by their usual names, as far as the OS lets them be
// used ("avx2", "fma", "avx512f", "avx512_bf16", "amx_int8", ...).
std::vector<std::string> cpu_features();

}  // namespace inlay::kernels
