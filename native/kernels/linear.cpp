#include <algorithm>

#include "isa.h"
#include "operators.h"
#include "product_scratch.h"
#include "row_packing.h"
#include "thread_pool.h"

namespace inlay::kernels {
namespace {

// What an item reads with few rows. Starting on an item costs as much as reading 5 KiB, so panels
// of 4-bit weights gain 10 % beside items of one panel, those of bf16 1 %.
constexpr int64_t kItemBytes = int64_t{1} << 20;

}  // namespace

void linear(ConstRows x_TK, const LinearWeight& weight, const float* bias_N, bool accumulate,
            Rows out_TN) {
  if (x_TK.rows == 0) return;
  const KernelTable& table = selected();
  ThreadPool::Session session(ThreadPool::instance());
  const int64_t panel_bytes = weight.layout().panel_bytes;
  const int64_t row_blocks = (x_TK.rows + kMaxRows - 1) / kMaxRows;
  const int64_t block_rows = (x_TK.rows + row_blocks - 1) / row_blocks;
  // Every thread gets several items. With one row block an item is some panels to be read one after
  // the other; with more its panels share a row block's slice of x in L2.
  const bool one_block = row_blocks == 1;
  const int64_t most_panels =
      one_block ? std::max<int64_t>(1, kItemBytes / panel_bytes) : panels_at_once(weight.layout());
  const int64_t items_per_thread = one_block ? 4 : 8;
  const int64_t panels_per_item = std::clamp<int64_t>(
      weight.panels() * row_blocks / (items_per_thread * session.num_threads()), 1, most_panels);
  const int64_t at_once = one_block ? 1 : panels_per_item;
  const int64_t panel_groups = (weight.panels() + panels_per_item - 1) / panels_per_item;
  session.prepare_thread_scratch(ProductScratch::kFloats);
  const PackedRows rows_TK =
      pack(session, table, x_TK, weight.format(),
           session.shared_scratch<std::byte>(packed_bytes(weight.format(), x_TK.rows, x_TK.cols)));

  // Row blocks of one group of panels follow each other, so that the panels are still in a cache.
  const auto item_body = [&](int64_t item, int thread) {
    const int64_t first_panel = item / row_blocks * panels_per_item;
    const int64_t end_panel = std::min(first_panel + panels_per_item, weight.panels());
    const int64_t first = item % row_blocks * block_rows;
    const int64_t rows = std::min(block_rows, x_TK.rows - first);
    const ProductScratch scratch(session, thread);
    const std::byte* x_rows[kMaxRows];
    for (int64_t r = 0; r < rows; ++r) x_rows[r] = rows_TK.row(first + r);
    for (int64_t panel = first_panel; panel < end_panel; panel += at_once) {
      const int64_t panels = std::min(at_once, end_panel - panel);
      const int64_t last_cols =
          std::min(kPanel, weight.out_features() - (panel + panels - 1) * kPanel);
      // The panels that this thread takes next: of this item, or of the one that it draws when all
      // threads are at work. The last row block is the time to bring them closer.
      const int64_t next =
          panel + panels < end_panel
              ? panel + panels
              : first_panel +
                    panels_per_item * std::max<int64_t>(1, session.num_threads() / row_blocks);
      Fetch fetch;
      if (rows >= kFetchRows && item % row_blocks == row_blocks - 1 && next < weight.panels())
        fetch = {weight.panel(next), std::min(at_once, weight.panels() - next) * panel_bytes};
      table.panel_product({x_rows,
                           rows,
                           weight.panel(panel),
                           panels,
                           weight.format(),
                           x_TK.cols,
                           last_cols,
                           scratch.c,
                           scratch.layout,
                           {fetch, {}},
                           fetch_window(weight.layout(), rows)});
      for (int64_t i = 0; i < panels; ++i) {
        const int64_t column = (panel + i) * kPanel;
        table.vectors.store_rows({scratch.c + i * rows * kPanel, rows,
                                  i + 1 == panels ? last_cols : kPanel,
                                  bias_N == nullptr ? nullptr : bias_N + column, accumulate,
                                  out_TN.row(first) + column, out_TN.stride});
      }
    }
  };

  // About 2 us of one core; less is not worth waking another.
  constexpr int64_t kSerialWork = int64_t{1} << 17;
  const int64_t items = panel_groups * row_blocks;
  if (x_TK.rows * weight.in_features() * weight.out_features() < kSerialWork)
    for (int64_t item = 0; item < items; ++item) item_body(item, 0);
  else
    session.parallel_for(items, item_body);
}

void linear_heads(const LinearHeads& p) {
  const int64_t tokens = p.x_TK.rows;
  if (tokens == 0) return;
  const LinearWeight& weight = *p.weight;
  const Format format = weight.format();
  const KernelTable& table = selected();
  ThreadPool::Session session(ThreadPool::instance());
  const int64_t panels = weight.panels() / p.heads;
  const int64_t blocks = (tokens + kMaxRows - 1) / kMaxRows;
  const int64_t block_rows = (tokens + blocks - 1) / blocks;
  session.prepare_thread_scratch(ProductScratch::kFloats);
  const int64_t head_bytes = packed_bytes(format, tokens, p.x_TK.cols);
  std::byte* const memory = session.shared_scratch<std::byte>(p.heads * head_bytes);
  const auto rows_of = [&](int64_t head) {
    return ConstRows{p.x_TK.data + head * p.x_head_stride, tokens, p.x_TK.cols, p.x_TK.stride};
  };
  if (head_bytes > 0)
    session.parallel_for(p.heads, [&](int64_t head, int) {
      pack_some(table, rows_of(head), format, 0, tokens, memory + head * head_bytes);
    });
  const int64_t most_panels = std::min(panels_at_once(weight.layout()), panels);
  // The blocks of one head follow each other, so that its panels are still in a cache.
  session.parallel_for(p.heads * blocks, [&](int64_t item, int thread) {
    const int64_t head = item / blocks, first = item % blocks * block_rows;
    const int64_t rows = std::min(block_rows, tokens - first);
    const ProductScratch scratch(session, thread);
    const std::byte* x_rows[kMaxRows];
    const PackedRows packed = {memory + head * head_bytes, head_bytes / tokens};
    for (int64_t r = 0; r < rows; ++r)
      x_rows[r] = head_bytes > 0 ? packed.row(first + r)
                                 : reinterpret_cast<const std::byte*>(rows_of(head).row(first + r));
    for (int64_t panel = 0; panel < panels; panel += most_panels) {
      const int64_t count = std::min(most_panels, panels - panel);
      const int64_t last_cols = std::min(kPanel, p.out_features - (panel + count - 1) * kPanel);
      table.panel_product({x_rows,
                           rows,
                           weight.panel(head * panels + panel),
                           count,
                           format,
                           p.x_TK.cols,
                           last_cols,
                           scratch.c,
                           scratch.layout,
                           {},
                           fetch_window(weight.layout(), rows)});
      for (int64_t i = 0; i < count; ++i)
        table.vectors.store_rows(
            {scratch.c + i * rows * kPanel, rows, i + 1 == count ? last_cols : kPanel, nullptr,
             false,
             p.out + first * p.out_token_stride + head * p.out_head_stride + (panel + i) * kPanel,
             p.out_token_stride});
    }
  });
}

}  // namespace inlay::kernels
