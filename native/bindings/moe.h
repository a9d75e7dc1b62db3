// What the calls of routed experts share.
#pragma once

#include "../kernels/operators.h"

namespace inlay::bindings {

// Throws ArgumentError naming the member.
kernels::Activation checked_activation(float alpha, float limit, float up_offset);

}  // namespace inlay::bindings
