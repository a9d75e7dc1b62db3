// What one thread needs for a product: its fp32 results, and room for another layout.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "caches.h"
#include "kernel_table.h"
#include "thread_pool.h"

namespace inlay::kernels {

// Panels of one product at most; they share the reading of its rows. What is being used, what is
// being fetched and the rows have to fit in L2 together, so the panels get a third of it.
constexpr int64_t kPanelsAtOnce = 4;

inline int64_t panels_at_once(const PanelLayout& layout) {
  return std::clamp<int64_t>(l2_bytes() / 3 / layout.panel_bytes, 1, kPanelsAtOnce);
}

// Rows from which a product is bound by the multipliers, and fetching the next weights meanwhile
// gains; with fewer the processor's own prefetching of the stream does better.
constexpr int64_t kFetchRows = 6;

// How a product of so many rows fetches (PanelProduct::window). Up to 24 rows what is fetched is
// used soon: fetching whole panels costs 16 rows 4 to 30 %, and gains 32 rows of int8 6 %. Panels
// of which three overfill L2 gain 1 to 7 % from windows at any number of rows.
inline bool fetch_window(const PanelLayout& layout, int64_t rows) {
  constexpr int64_t kWindowRows = 24;
  return rows <= kWindowRows || layout.panel_bytes > l2_bytes() / 3;
}

struct ProductScratch {
  static constexpr int64_t kResultFloats = kPanelsAtOnce * kMaxRows * kPanel;
  // 4096: the layout part begins with a page.
  static constexpr int64_t kFloats = (kProductScratch + 4096) / 4 + kResultFloats;

  ProductScratch(ThreadPool::Session& session, int thread) {
    float* memory = session.thread_scratch(thread);
    const auto address = reinterpret_cast<uintptr_t>(memory);
    layout = reinterpret_cast<std::byte*>((address + 4095) / 4096 * 4096);
    c = reinterpret_cast<float*>(layout + kProductScratch);
    rest = c + kResultFloats;
  }

  std::byte* layout;
  float* c;
  float* rest;  // what the operator asked for besides
};

}  // namespace inlay::kernels
