// Points of the lattices that ggml's IQ types look their weights up in: a byte for each weight, the
// first in the lowest one.
//
// Only plain structs: ISA files include this header.
#pragma once

#include <cstddef>
#include <cstdint>

namespace inlay::kernels {

template <int kPoints, int kWords>
struct Grid {
  alignas(64) uint32_t words[kPoints * kWords];
};

extern const Grid<256, 2> kIq2XxsGrid;
extern const Grid<512, 2> kIq2XsGrid;
extern const Grid<1024, 2> kIq2SGrid;
extern const Grid<2048, 2> kIq1Grid;
extern const Grid<256, 1> kIq3XxsGrid;
extern const Grid<512, 1> kIq3SGrid;

}  // namespace inlay::kernels
