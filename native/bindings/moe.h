// What the calls of routed experts share.
#pragma once

#include "../kernels/operators.h"

namespace inlay::bindings {

// Throws ArgumentError naming the member.
kernels::Activation checked_activation(float alpha, float limit, float up_offset);

// Throws where an id is not below the number of experts, or the weight of an expert that runs here
// is not finite.
void check_routing(const kernels::Moe& p);

}  // namespace inlay::bindings
