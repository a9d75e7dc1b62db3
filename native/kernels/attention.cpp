#include <algorithm>

#include "isa.h"
#include "operators.h"
#include "thread_pool.h"

namespace inlay::kernels {
namespace {

// Rows (queries x heads of a group) per tile: enough to spread the cost of transposing keys, few
// enough that scores and sums (rows x 0.5 KiB and more) stay in L2 beside keys and values.
constexpr int64_t kTileRows = 64;

struct Item {
  int32_t sequence;
  int32_t kv_head;
  int32_t first_query;  // within the sequence
  int32_t queries;
};

}  // namespace

void paged_attention(const PagedAttention& p) {
  const KernelTable& table = selected();
  ThreadPool::Session session(ThreadPool::instance());
  const KvGeometry& g = p.geometry;
  const int64_t group = p.q_heads / g.kv_heads;
  const int64_t tile_queries = std::max<int64_t>(1, kTileRows / group);

  int64_t count = 0;
  for (int64_t b = 0; b < p.sequences; ++b) {
    const int64_t queries = p.query_starts[b + 1] - p.query_starts[b];
    count += (queries + tile_queries - 1) / tile_queries * g.kv_heads;
  }
  Item* items = session.shared_scratch<Item>(count);
  Item* next = items;
  for (int64_t b = 0; b < p.sequences; ++b) {
    const int64_t queries = p.query_starts[b + 1] - p.query_starts[b];
    // The last tile of a chunk sees the most keys and goes first.
    for (int64_t t = (queries + tile_queries - 1) / tile_queries - 1; t >= 0; --t)
      for (int64_t h = 0; h < g.kv_heads; ++h)
        *next++ = {static_cast<int32_t>(b), static_cast<int32_t>(h),
                   static_cast<int32_t>(t * tile_queries),
                   static_cast<int32_t>(std::min(tile_queries, queries - t * tile_queries))};
  }

  session.prepare_thread_scratch(attention_scratch_floats(g.head_dim, std::max(group, kTileRows)));
  session.parallel_for(count, [&](int64_t index, int thread) {
    const Item& item = items[index];
    const int64_t queries = p.query_starts[item.sequence + 1] - p.query_starts[item.sequence];
    const int64_t token = p.query_starts[item.sequence] + item.first_query;
    const int64_t head = item.kv_head * group;
    const int64_t head_bytes = item.kv_head * g.head_dim * g.element_bytes();
    AttentionTile tile;
    tile.q = p.q + token * p.q_token_stride + head * p.q_head_stride;
    tile.q_token_stride = p.q_token_stride;
    tile.q_head_stride = p.q_head_stride;
    tile.out = p.out + token * p.out_token_stride + head * p.out_head_stride;
    tile.out_token_stride = p.out_token_stride;
    tile.out_head_stride = p.out_head_stride;
    tile.queries = item.queries;
    tile.group = group;
    tile.head_dim = g.head_dim;
    tile.first_position = p.context_lens[item.sequence] - queries + item.first_query;
    tile.window = p.window;
    tile.scale = p.scale;
    tile.k_plane = g.k_plane(p.pool, p.layer) + head_bytes;
    tile.v_plane = g.v_plane(p.pool, p.layer) + head_bytes;
    tile.page_bytes = g.page_bytes();
    tile.page_tokens = g.page_tokens;
    tile.token_stride = g.kv_heads * g.head_dim;
    tile.page_table = p.page_table + item.sequence * p.page_table_stride;
    tile.dtype = g.dtype;
    tile.scratch = session.thread_scratch(thread);
    table.attention_tile(tile);
  });
}

}  // namespace inlay::kernels
