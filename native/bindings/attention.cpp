#include <nanobind/stl/string.h>

#include <cmath>

#include "array.h"
#include "module.h"

namespace inlay::bindings {

using namespace nb::literals;
using kernels::DType;
using kernels::KvGeometry;

namespace {

// Keep products of sizes, and those of a page with pages of a pool, far from overflow.
constexpr int64_t kMaxSize = int64_t{1} << 20;
constexpr int64_t kMaxPageBytes = int64_t{1} << 47;

KvGeometry* new_geometry(int64_t layers, int64_t page_tokens, int64_t kv_heads, int64_t head_dim,
                         const std::string& dtype, bool latent) {
  const auto check = [](const char* name, int64_t value, int64_t max) {
    if (value < 1 || value > max) fail(name, ": must be in 1..", max, ", got ", value);
  };
  check("layers", layers, kMaxSize);
  check("page_tokens", page_tokens, kMaxSize);
  check("kv_heads", kv_heads, 65536);
  check("head_dim", head_dim, 1024);
  if (head_dim % 2 != 0) fail("head_dim: must be even, got ", head_dim);
  if (latent && kv_heads != 1) fail("kv_heads: latents have 1, got ", kv_heads);
  const DType parsed = parse_dtype(dtype);
  // Exact: at most 2^49 for one layer.
  const int64_t layer_bytes =
      KvGeometry{1, page_tokens, kv_heads, head_dim, parsed, latent}.page_bytes();
  if (layers > kMaxPageBytes / layer_bytes)
    fail("layers: ", layers, " of ", layer_bytes, " bytes make a page of more than 2^47 bytes");
  return new KvGeometry{layers, page_tokens, kv_heads, head_dim, parsed, latent};
}

// The pool as bytes, checked against the geometry.
class Pool {
 public:
  Pool(nb::handle object, const KvGeometry& geometry, int64_t layer, Access access)
      : array_(object, "kv_pool", 2, access) {
    int64_t item_bytes = 1;
    if (array_.kind() != Kind::kU8) {
      array_.require_kind(geometry.dtype == DType::kF32 ? Kind::kF32 : Kind::kBf16);
      item_bytes = geometry.element_bytes();
    }
    array_.require_contiguous();
    if (array_.size(1) * item_bytes != geometry.page_bytes())
      fail("kv_pool: its pages have ", array_.size(1) * item_bytes,
           " bytes, the geometry's page has ", geometry.page_bytes());
    if (reinterpret_cast<std::uintptr_t>(array_.data()) % 4 != 0)
      fail("kv_pool: is not aligned to 4 bytes");
    if (layer < 0 || layer >= geometry.layers)
      fail("layer: must be in 0..", geometry.layers - 1, ", got ", layer);
  }
  Extent extent() const { return array_.extent(); }
  uint8_t* data() const { return static_cast<uint8_t*>(array_.data()); }
  int64_t pages() const { return array_.size(0); }

 private:
  Array array_;
};

void check_positions(const Array& positions, const Array& slots, int64_t max_positions,
                     int64_t max_slots) {
  const int32_t* position = positions.as<const int32_t>(Kind::kI32);
  const int64_t* slot = slots.as<const int64_t>(Kind::kI64);
  for (int64_t t = 0; t < positions.size(0); ++t) {
    if (position[t] < 0 || position[t] >= max_positions)
      fail("positions_T: position ", position[t], " of token ", t, " is not in 0..",
           max_positions - 1);
    if (slot[t] >= max_slots)
      fail("slots_T: slot ", slot[t], " of token ", t, " is not below the pool's ", max_slots);
  }
}

void rope_and_store(nb::handle qkv_TX, nb::handle positions_T, nb::handle cos_PR, nb::handle sin_PR,
                    nb::handle kv_pool, const KvGeometry& geometry, int64_t layer,
                    nb::handle slots_T, nb::handle q_norm_D, nb::handle k_norm_D, float norm_eps,
                    bool rotate_first) {
  const Array qkv(qkv_TX, "qkv_TX", 2, Access::kWrite);
  const Array positions(positions_T, "positions_T", 1), slots(slots_T, "slots_T", 1);
  const Array cos(cos_PR, "cos_PR", 2), sin(sin_PR, "sin_PR", 2);
  const Pool pool(kv_pool, geometry, layer, Access::kWrite);
  const int64_t d = geometry.head_dim;
  const int64_t q_heads = qkv.size(1) / d - geometry.planes() * geometry.kv_heads;
  if (qkv.size(1) % d != 0 || q_heads < 1)
    fail("qkv_TX: its rows have ", qkv.size(1), " elements, expected (q_heads + ",
         geometry.planes(), " * kv_heads) * head_dim with ", geometry.kv_heads,
         " kv_heads and head_dim ", d);
  positions.require_size(0, qkv.size(0), "tokens of qkv_TX");
  slots.require_size(0, qkv.size(0), "tokens of qkv_TX");
  positions.require_contiguous();
  slots.require_contiguous();
  cos.require_contiguous();
  sin.require_contiguous();
  if (2 * cos.size(1) > d)
    fail("cos_PR: has ", cos.size(1), " columns, at most head_dim / 2 = ", d / 2, " fit");
  sin.require_size(0, cos.size(0), "positions of cos_PR");
  sin.require_size(1, cos.size(1), "columns of cos_PR");
  const OptionalVector q_norm(q_norm_D, "q_norm_D", d), k_norm(k_norm_D, "k_norm_D", d);
  if (!(norm_eps >= 0) || !std::isfinite(norm_eps))
    fail("norm_eps: must be finite and not negative, got ", norm_eps);
  check_positions(positions, slots, cos.size(0), pool.pages() * geometry.page_tokens);
  const kernels::Rows qkv_rows = rows(qkv);
  for (const Extent& out : {qkv.extent(), pool.extent()})
    require_apart(out, {positions.extent(), cos.extent(), sin.extent(), slots.extent(),
                        q_norm.extent(), k_norm.extent()});
  require_apart(qkv.extent(), {pool.extent()});
  const kernels::RopeRows call = {qkv_rows.data,
                                  qkv_rows.stride,
                                  positions.as<const int32_t>(Kind::kI32),
                                  qkv_rows.rows,
                                  q_heads,
                                  geometry.kv_heads,
                                  d,
                                  geometry.latent ? d - 2 * cos.size(1) : 0,
                                  2 * cos.size(1),
                                  cos.as<const float>(Kind::kF32),
                                  sin.as<const float>(Kind::kF32),
                                  q_norm.data(),
                                  k_norm.data(),
                                  norm_eps,
                                  rotate_first,
                                  slots.as<const int64_t>(Kind::kI64),
                                  geometry.page_tokens,
                                  geometry.page_bytes(),
                                  geometry.k_plane(pool.data(), layer),
                                  geometry.latent ? nullptr : geometry.v_plane(pool.data(), layer),
                                  geometry.dtype};
  const nb::gil_scoped_release unlocked;
  kernels::rope_and_store(call);
}

// Query ranges, context lengths and the page ids that will be read.
void check_sequences(const kernels::PagedAttention& p, int64_t tokens, int64_t pages,
                     int64_t table_width) {
  const KvGeometry& g = p.geometry;
  if (p.query_starts[0] != 0 || p.query_starts[p.sequences] != tokens)
    fail("query_starts_B1: must begin with 0 and end with the ", tokens, " tokens of q_THD, has ",
         p.query_starts[0], " and ", p.query_starts[p.sequences]);
  for (int64_t b = 0; b < p.sequences; ++b) {
    const int64_t queries = int64_t{p.query_starts[b + 1]} - p.query_starts[b];
    const int64_t context = p.context_lens[b];
    if (queries < 0) fail("query_starts_B1: decreases at sequence ", b);
    if (context < queries)
      fail("context_lens_B: ", context, " of sequence ", b, " is less than its ", queries,
           " new tokens");
    if (queries == 0) continue;
    const int64_t used = (context + g.page_tokens - 1) / g.page_tokens;
    if (used > table_width)
      fail("page_table_BP: has ", table_width, " columns, sequence ", b, " needs ", used);
    const int64_t first_token =
        p.window > 0 ? std::max<int64_t>(0, context - queries + 1 - p.window) : 0;
    for (int64_t i = first_token / g.page_tokens; i < used; ++i) {
      const int32_t page = p.page_table[b * p.page_table_stride + i];
      if (page < 0 || page >= pages)
        fail("page_table_BP: page ", page, " of sequence ", b, " is not in 0..", pages - 1);
    }
  }
}

// -inf is a head without a sink; the others would make every result of their head NaN.
void check_sinks(const OptionalVector& sinks, int64_t q_heads) {
  if (sinks.data() == nullptr) return;
  for (int64_t h = 0; h < q_heads; ++h)
    if (!(sinks.data()[h] < HUGE_VALF))
      fail("sinks_H: must be numbers or -inf, got ", sinks.data()[h], " for head ", h);
}

void paged_attention(nb::handle q_THD, nb::handle kv_pool, const KvGeometry& geometry,
                     int64_t layer, nb::handle page_table_BP, nb::handle query_starts_B1,
                     nb::handle context_lens_B, float scale, nb::handle out_THD,
                     int64_t sliding_window, nb::handle sinks_H, float softcap) {
  const Array q(q_THD, "q_THD", 3);
  const Array out(out_THD, "out_THD", 3, Access::kWrite);
  const Array page_table(page_table_BP, "page_table_BP", 2);
  const Array query_starts(query_starts_B1, "query_starts_B1", 1);
  const Array context_lens(context_lens_B, "context_lens_B", 1);
  const Pool pool(kv_pool, geometry, layer, Access::kRead);
  const int64_t q_heads = q.size(1);
  const bool fits = geometry.latent || q_heads / geometry.kv_heads <= kernels::kMaxAttentionRows;
  if (q_heads < 1 || q_heads % geometry.kv_heads != 0 || !fits)
    fail("q_THD: has ", q_heads, " heads, expected 1 to ", kernels::kMaxAttentionRows,
         " per each of the ", geometry.kv_heads, " kv_heads");
  q.require_size(2, geometry.head_dim, "head_dim");
  for (int i = 0; i < 2; ++i) out.require_size(i, q.size(i), "the shape of q_THD");
  const int64_t value_dim = out.size(2);
  if (!geometry.latent) out.require_size(2, q.size(2), "the shape of q_THD");
  if (value_dim < 2 || value_dim > geometry.head_dim || value_dim % 2 != 0)
    fail("out_THD: has ", value_dim, " elements per head, expected an even number up to ",
         geometry.head_dim, ", the geometry's head_dim");
  if (q.stride(2) != 1) fail("q_THD: the last dimension must be contiguous");
  require_heads_apart(out);
  query_starts.require_contiguous();
  context_lens.require_contiguous();
  query_starts.require_size(0, context_lens.size(0) + 1, "one more than context_lens_B");
  page_table.require_size(0, context_lens.size(0), "sequences of context_lens_B");
  if (page_table.stride(1) != 1) fail("page_table_BP: the last dimension must be contiguous");
  if (!std::isfinite(scale)) fail("scale: must be finite, got ", scale);
  if (sliding_window < 0 || sliding_window > (int64_t{1} << 31))
    fail("sliding_window: must be 0 (none) or a number of tokens, got ", sliding_window);
  if (!(softcap >= 0) || !std::isfinite(softcap))
    fail("softcap: must be finite and not negative, got ", softcap);
  const OptionalVector sinks(sinks_H, "sinks_H", q_heads);
  check_sinks(sinks, q_heads);
  const kernels::PagedAttention call = {q.as<const float>(Kind::kF32),
                                        q.stride(0),
                                        q.stride(1),
                                        q_heads,
                                        pool.data(),
                                        geometry,
                                        layer,
                                        page_table.as<const int32_t>(Kind::kI32),
                                        page_table.stride(0),
                                        query_starts.as<const int32_t>(Kind::kI32),
                                        context_lens.as<const int32_t>(Kind::kI32),
                                        context_lens.size(0),
                                        scale,
                                        sliding_window,
                                        sinks.data(),
                                        softcap,
                                        out.as<float>(Kind::kF32),
                                        out.stride(0),
                                        out.stride(1),
                                        value_dim};
  require_apart(out.extent(), {q.extent(), pool.extent(), page_table.extent(),
                               query_starts.extent(), context_lens.extent(), sinks.extent()});
  check_sequences(call, q.size(0), pool.pages(), page_table.size(1));
  const nb::gil_scoped_release unlocked;
  kernels::paged_attention(call);
}

}  // namespace

void register_attention(nb::module_& m) {
  nb::class_<KvGeometry>(m, "KvGeometry")
      .def(nb::new_(&new_geometry), "layers"_a, "page_tokens"_a, "kv_heads"_a, "head_dim"_a,
           "dtype"_a, "latent"_a = false)
      .def_ro("layers", &KvGeometry::layers)
      .def_ro("page_tokens", &KvGeometry::page_tokens)
      .def_ro("kv_heads", &KvGeometry::kv_heads)
      .def_ro("head_dim", &KvGeometry::head_dim)
      .def_ro("latent", &KvGeometry::latent)
      .def_prop_ro("dtype", [](const KvGeometry& self) { return dtype_name(self.dtype); })
      .def_prop_ro("page_bytes", &KvGeometry::page_bytes);
  m.def("rope_and_store", rope_and_store, "qkv_TX"_a.none(), "positions_T"_a.none(),
        "cos_PR"_a.none(), "sin_PR"_a.none(), "kv_pool"_a.none(), "geometry"_a, "layer"_a,
        "slots_T"_a.none(), "q_norm_D"_a = nb::none(), "k_norm_D"_a = nb::none(),
        "norm_eps"_a = 1e-6f, "rotate_first"_a = false);
  m.def("paged_attention", paged_attention, "q_THD"_a.none(), "kv_pool"_a.none(), "geometry"_a,
        "layer"_a, "page_table_BP"_a.none(), "query_starts_B1"_a.none(), "context_lens_B"_a.none(),
        "scale"_a, "out_THD"_a.none(), "sliding_window"_a = 0, "sinks_H"_a = nb::none(),
        "softcap"_a = 0.0f);
}

}  // namespace inlay::bindings
