#include <algorithm>

#include "isa.h"
#include "operators.h"
#include "thread_pool.h"

namespace inlay::kernels {

void linear(ConstRows x_TK, const LinearWeight& weight, const float* bias_N, bool accumulate,
            Rows out_TN) {
  if (x_TK.rows == 0) return;
  const KernelTable& table = selected();
  ThreadPool::Session session(ThreadPool::instance());
  const int64_t row_blocks = (x_TK.rows + kMaxRows - 1) / kMaxRows;
  const int64_t block_rows = (x_TK.rows + row_blocks - 1) / row_blocks;
  session.prepare_thread_scratch(kMaxRows * kPanel);

  // Row blocks of one panel follow each other, so that the panel is still in a cache.
  const auto item_body = [&](int64_t item, int thread) {
    const int64_t panel = item / row_blocks;
    const int64_t first = item % row_blocks * block_rows;
    const int64_t rows = std::min(block_rows, x_TK.rows - first);
    const int64_t column = panel * kPanel;
    const int64_t cols = std::min(kPanel, weight.out_features() - column);
    float* c = session.thread_scratch(thread);
    const float* x_rows[kMaxRows];
    for (int64_t r = 0; r < rows; ++r) x_rows[r] = x_TK.row(first + r);
    table.panel_product(
        {x_rows, rows, weight.panel(panel), weight.dtype(), weight.in_features(), cols, c});
    table.store_rows({c, rows, cols, bias_N == nullptr ? nullptr : bias_N + column, accumulate,
                      out_TN.row(first) + column, out_TN.stride});
  };

  // About 2 us of one core; less is not worth waking another.
  constexpr int64_t kSerialWork = int64_t{1} << 17;
  const int64_t items = weight.panels() * row_blocks;
  if (x_TK.rows * weight.in_features() * weight.out_features() < kSerialWork)
    for (int64_t item = 0; item < items; ++item) item_body(item, 0);
  else
    session.parallel_for(items, item_body);
}

}  // namespace inlay::kernels
