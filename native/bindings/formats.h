// Weight formats by name.
#pragma once

#include <string>

#include "../kernels/formats.h"

namespace inlay::bindings {

// Throws ArgumentError naming `format`.
kernels::Format parse_format(const std::string& format);

// Throws unless the format is one with scales.
void require_scales(kernels::Format format);

// Throws unless the format can sum products of k values; `name` is the argument that holds k.
void require_inner_size(kernels::Format format, const char* name, int64_t k);

}  // namespace inlay::bindings
