// Which rows of a call have adapters, as Python gives them.
#pragma once

#include <vector>

#include "../kernels/adapters.h"
#include "array.h"

namespace inlay::bindings {

// `(experts, shared, first, end)` for each adapter of a call of `moe`, held and checked.
class AdapterRows {
 public:
  AdapterRows(nb::handle adapters, int64_t tokens, const kernels::ExpertWeights& experts,
              const kernels::ExpertWeights* shared);
  std::span<const kernels::ExpertRows> rows() const { return rows_; }

 private:
  std::vector<nb::object> held_;
  std::vector<kernels::ExpertRows> rows_;
};

}  // namespace inlay::bindings
