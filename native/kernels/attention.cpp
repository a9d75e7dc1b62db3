#include <algorithm>

#include "isa.h"
#include "operators.h"
#include "thread_pool.h"

namespace inlay::kernels {
namespace {

// Items per thread, so that the last ones to finish leave little idle time.
constexpr int64_t kSharesPerThread = 4;

// Reading and transposing a key costs about as much as its products with this many rows.
constexpr int64_t kRowsOfKey = 8;

int64_t parts(int64_t whole, int64_t part) { return (whole + part - 1) / part; }

// Consecutive queries of a sequence; `first_segment` and `last_segment` hold all that they see.
struct Tile {
  int64_t sequence;
  int64_t first_query;  // within the sequence
  int64_t queries;
  int64_t first_position;
  int64_t first_segment;
  int64_t last_segment;
  int64_t cost;  // of one key/value head
};

// Some heads of a tile, worked on in several runs of segments.
struct HeadRun {
  Tile tile;
  int64_t first_head;  // key/value head
  int64_t heads;
  int64_t pieces;
  int64_t partials;  // where its states begin in the shared memory, when there are several pieces
};

struct Share {
  int64_t head_run;
  int64_t piece;
};

// Calls body(Tile) for all queries. A chunk's last tile sees the most keys and goes first.
template <typename Body>
void each_tile(const PagedAttention& p, int64_t group, const Body& body) {
  const int64_t most_queries = std::max<int64_t>(1, kMaxAttentionRows / group);
  for (int64_t b = 0; b < p.sequences; ++b) {
    const int64_t all = p.query_starts[b + 1] - p.query_starts[b];
    for (int64_t t = parts(all, most_queries) - 1; t >= 0; --t) {
      Tile tile;
      tile.sequence = b;
      tile.first_query = t * most_queries;
      tile.queries = std::min(most_queries, all - tile.first_query);
      tile.first_position = p.context_lens[b] - all + tile.first_query;
      const int64_t seen =
          p.window > 0 ? std::max<int64_t>(0, tile.first_position + 1 - p.window) : 0;
      const int64_t end = tile.first_position + tile.queries;
      tile.first_segment = seen / kSegment;
      tile.last_segment = parts(end, kSegment);
      tile.cost = (end - seen) * (tile.queries * group + kRowsOfKey);
      body(tile);
    }
  }
}

// Heads of keys and values as tiles have them. Those of latents are one, and as many query heads
// share it as a tile has rows for.
int64_t tile_heads(const PagedAttention& p) {
  if (!p.geometry.latent) return p.geometry.kv_heads;
  int64_t heads = parts(p.q_heads, kMaxAttentionRows);
  while (p.q_heads % heads != 0) ++heads;
  return heads;
}

// Calls body(HeadRun) for all work: first heads are dealt out, as many to an item as fit, then
// segments. How the work is cut changes no bit of the result.
template <typename Body>
void each_head_run(const PagedAttention& p, int64_t group, int threads, const Body& body) {
  const int64_t kv_heads = tile_heads(p);
  int64_t cost = 0;
  each_tile(p, group, [&](const Tile& tile) { cost += tile.cost * kv_heads; });
  const int64_t item_cost = std::max<int64_t>(1, cost / (threads * kSharesPerThread));
  each_tile(p, group, [&](const Tile& tile) {
    const int64_t segments = tile.last_segment - tile.first_segment;
    const int64_t items = threads == 1 ? 1 : parts(tile.cost * kv_heads, item_cost);
    const int64_t most_heads = std::max<int64_t>(1, kMaxAttentionRows / (tile.queries * group));
    const int64_t runs = std::clamp(parts(items, segments), parts(kv_heads, most_heads), kv_heads);
    const int64_t pieces = std::clamp<int64_t>(parts(items, runs), 1, segments);
    for (int64_t i = 0; i < runs; ++i) {
      const int64_t head = kv_heads * i / runs;
      body(HeadRun{tile, head, kv_heads * (i + 1) / runs - head, pieces, 0});
    }
  });
}

// Of one segment, when there are several pieces.
int64_t state_floats(const PagedAttention& p, int64_t group, const HeadRun& run) {
  return run.heads * run.tile.queries * group * attention_state_floats(p.value_dim);
}

AttentionTile attention_tile(const PagedAttention& p, int64_t group, const HeadRun& run,
                             int64_t piece, float* partials, float* scratch) {
  const KvGeometry& g = p.geometry;
  const Tile& tile = run.tile;
  const int64_t token = p.query_starts[tile.sequence] + tile.first_query;
  const int64_t head = run.first_head * group;
  const int64_t head_stride = g.latent ? 0 : g.head_dim;
  const int64_t head_bytes = run.first_head * head_stride * g.element_bytes();
  const int64_t segments = tile.last_segment - tile.first_segment;
  AttentionTile t;
  t.q = p.q + token * p.q_token_stride + head * p.q_head_stride;
  t.q_token_stride = p.q_token_stride;
  t.q_head_stride = p.q_head_stride;
  t.out = p.out + token * p.out_token_stride + head * p.out_head_stride;
  t.out_token_stride = p.out_token_stride;
  t.out_head_stride = p.out_head_stride;
  t.heads = run.heads;
  t.queries = tile.queries;
  t.group = group;
  t.head_dim = g.head_dim;
  t.value_dim = p.value_dim;
  t.head_stride = head_stride;
  t.first_position = tile.first_position;
  t.window = p.window;
  t.scale = p.scale;
  t.sinks = p.sinks == nullptr ? nullptr : p.sinks + head;
  t.softcap = p.softcap;
  t.k_plane = g.k_plane(p.pool, p.layer) + head_bytes;
  t.v_plane = g.v_plane(p.pool, p.layer) + head_bytes;
  t.page_bytes = g.page_bytes();
  t.page_tokens = g.page_tokens;
  t.token_stride = g.kv_heads * g.head_dim;
  t.page_table = p.page_table + tile.sequence * p.page_table_stride;
  t.dtype = g.dtype;
  t.first_segment = tile.first_segment + segments * piece / run.pieces;
  t.last_segment = tile.first_segment + segments * (piece + 1) / run.pieces;
  t.partials = nullptr;
  if (run.pieces > 1)
    t.partials = partials + run.partials +
                 (t.first_segment - tile.first_segment) * state_floats(p, group, run);
  t.scratch = scratch;
  return t;
}

}  // namespace

void paged_attention(const PagedAttention& p) {
  const KernelTable& table = selected();
  ThreadPool::Session session(ThreadPool::instance());
  const int64_t group = p.q_heads / tile_heads(p);

  int64_t num_runs = 0, num_items = 0, num_split = 0, floats = 0;
  each_head_run(p, group, session.num_threads(), [&](const HeadRun& run) {
    ++num_runs;
    num_items += run.pieces;
    if (run.pieces == 1) return;
    ++num_split;
    floats += (run.tile.last_segment - run.tile.first_segment) * state_floats(p, group, run);
  });
  // The states come first: they are aligned to 64 bytes.
  std::byte* shared = session.shared_scratch<std::byte>(
      floats * int64_t{sizeof(float)} + num_runs * int64_t{sizeof(HeadRun)} +
      (num_items + num_split) * int64_t{sizeof(Share)});
  float* partials = reinterpret_cast<float*>(shared);
  HeadRun* runs = reinterpret_cast<HeadRun*>(partials + floats);
  Share* items = reinterpret_cast<Share*>(runs + num_runs);
  Share* merges = items + num_items;

  HeadRun* run = runs;
  Share* item = items;
  Share* merge = merges;
  floats = 0;
  each_head_run(p, group, session.num_threads(), [&](const HeadRun& next) {
    *run = next;
    for (int64_t piece = 0; piece < run->pieces; ++piece) *item++ = {run - runs, piece};
    if (run->pieces > 1) {
      *merge++ = {run - runs, 0};
      run->partials = floats;
      floats += (run->tile.last_segment - run->tile.first_segment) * state_floats(p, group, *run);
    }
    ++run;
  });

  session.prepare_thread_scratch(attention_scratch_floats(p.geometry.head_dim));
  session.parallel_for(num_items, [&](int64_t index, int thread) {
    table.vectors.attention_tile(attention_tile(p, group, runs[items[index].head_run],
                                                items[index].piece, partials,
                                                session.thread_scratch(thread)));
  });
  session.parallel_for(num_split, [&](int64_t index, int thread) {
    const HeadRun& split = runs[merges[index].head_run];
    AttentionTile tile =
        attention_tile(p, group, split, 0, partials, session.thread_scratch(thread));
    tile.last_segment = split.tile.last_segment;
    table.vectors.merge_attention(tile);
  });
}

}  // namespace inlay::kernels
