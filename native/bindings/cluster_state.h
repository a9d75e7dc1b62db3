// The cluster state as Python has it, over numbers that Python owns; the simulator's world feeds
// the same one.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include "../cluster/state.h"
#include "array.h"

namespace inlay::bindings {

class BoundState {
 public:
  using Numbers = nb::ndarray<double, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

  BoundState(int64_t page_tokens, int64_t page_bytes) : state_(page_tokens, page_bytes) {}

  cluster::State& state() { return state_; }
  void bind(Numbers numbers) {
    if (numbers.shape(0) != static_cast<std::size_t>(cluster::Column::kCount))
      fail("numbers: must have ", static_cast<std::size_t>(cluster::Column::kCount), " rows, got ",
           numbers.shape(0));
    if (numbers.shape(1) < state_.num_slots())
      fail("numbers: there are ", state_.num_slots(), " slots already, got ", numbers.shape(1));
    numbers_ = std::move(numbers);
    state_.bind(numbers_.data(), numbers_.shape(1));
  }

 private:
  cluster::State state_;
  Numbers numbers_;
};

}  // namespace inlay::bindings
