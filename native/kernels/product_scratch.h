// What one thread needs for a product: its fp32 results, and room for another layout.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernel_table.h"
#include "thread_pool.h"

namespace inlay::kernels {

// Panels of one product; they share the reading of its rows. What is being used and what is being
// fetched have to fit in L2 together.
constexpr int64_t kPanelsAtOnce = 4;
constexpr int64_t kBytesAtOnce = 320 * 1024;

inline int64_t panels_at_once(const PanelLayout& layout) {
  return std::clamp<int64_t>(kBytesAtOnce / layout.panel_bytes, 1, kPanelsAtOnce);
}

// Rows from which a product is bound by the multipliers, and fetching the next weights meanwhile
// gains; with fewer the processor's own prefetching of the stream does better.
constexpr int64_t kFetchRows = 6;

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
