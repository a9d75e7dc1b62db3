// Every operator on every variant that this machine runs: against plain loops, and a token alone
// against the same token in a batch, bit for bit. The Python tests go wider; these run under the
// sanitizers.
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "../kernels/isa.h"
#include "../kernels/operators.h"
#include "../kernels/thread_pool.h"
#include "check.h"

namespace {

using namespace inlay::kernels;
using Floats = std::vector<float>;

std::mt19937 generator(1);

Floats random_floats(int64_t count) {
  std::normal_distribution<float> normal;
  Floats values(static_cast<std::size_t>(count));
  for (float& value : values) value = normal(generator);
  return values;
}

ConstRows const_rows(const Floats& values, int64_t rows, int64_t cols) {
  return {values.data(), rows, cols, cols};
}
Rows rows_of(Floats& values, int64_t rows, int64_t cols) {
  return {values.data(), rows, cols, cols};
}

void check_close(const Floats& result, const Floats& expected, float tolerance) {
  CHECK(result.size() == expected.size());
  for (std::size_t i = 0; i < result.size(); ++i)
    CHECK(std::abs(result[i] - expected[i]) <= tolerance);
}

// y = W x in double.
Floats product(const float* x, const float* w, int64_t n, int64_t k) {
  Floats y(static_cast<std::size_t>(n));
  for (int64_t i = 0; i < n; ++i) {
    double sum = 0;
    for (int64_t j = 0; j < k; ++j) sum += static_cast<double>(w[i * k + j]) * x[j];
    y[static_cast<std::size_t>(i)] = static_cast<float>(sum);
  }
  return y;
}

// The fp32 values that a weight really holds, [N][K].
Floats held(const LinearWeight& weight) {
  const std::size_t count = static_cast<std::size_t>(weight.out_features() * weight.in_features());
  Floats values(count);
  if (weight.dtype() == DType::kF32) {
    weight.unpack(values.data());
    return values;
  }
  std::vector<uint16_t> bits(count);
  weight.unpack(bits.data());
  for (std::size_t i = 0; i < count; ++i) {
    const uint32_t word = static_cast<uint32_t>(bits[i]) << 16;
    std::memcpy(&values[i], &word, 4);
  }
  return values;
}

void test_linear(DType dtype) {
  for (const auto& [t, k, n] :
       {std::tuple{1, 1, 1}, {5, 33, 70}, {13, 1100, 129}, {99, 64, 64}, {200, 7, 300}}) {
    const Floats x = random_floats(t * k), w = random_floats(n * k), bias = random_floats(n);
    LinearWeight weight(n, k, dtype);
    weight.set_rows(0, {w.data(), DType::kF32, n, k, k});
    const Floats values = held(weight);
    Floats out = random_floats(t * n), expected = out;
    for (int64_t i = 0; i < t; ++i) {
      const Floats y = product(&x[static_cast<std::size_t>(i * k)], values.data(), n, k);
      for (int64_t j = 0; j < n; ++j)
        expected[static_cast<std::size_t>(i * n + j)] +=
            y[static_cast<std::size_t>(j)] + bias[static_cast<std::size_t>(j)];
    }
    linear(const_rows(x, t, k), weight, bias.data(), true, rows_of(out, t, n));
    check_close(out, expected, 1e-3f);

    Floats together(static_cast<std::size_t>(t * n)), alone(together.size());
    linear(const_rows(x, t, k), weight, nullptr, false, rows_of(together, t, n));
    for (int64_t i = 0; i < t; ++i)
      linear({&x[static_cast<std::size_t>(i * k)], 1, k, k}, weight, nullptr, false,
             {&alone[static_cast<std::size_t>(i * n)], 1, n, n});
    CHECK(together == alone);
  }
}

void test_moe(DType dtype) {
  const int64_t experts = 5, hidden = 70, width = 45, top_k = 3, tokens = 40;
  ExpertWeights weights(experts, hidden, width, dtype);
  std::vector<LinearWeight> gates, ups, downs;
  for (int64_t e = 0; e < experts; ++e) {
    const Floats gate = random_floats(width * hidden), up = random_floats(width * hidden),
                 down = random_floats(hidden * width);
    weights.set(e, {gate.data(), DType::kF32, width, hidden, hidden},
                {up.data(), DType::kF32, width, hidden, hidden},
                {down.data(), DType::kF32, hidden, width, width});
    const auto keep = [dtype](std::vector<LinearWeight>& list, const Floats& w, int64_t n,
                              int64_t k) {
      list.emplace_back(n, k, dtype);
      list.back().set_rows(0, {w.data(), DType::kF32, n, k, k});
    };
    keep(gates, gate, width, hidden);
    keep(ups, up, width, hidden);
    keep(downs, down, hidden, width);
  }
  const Floats x = random_floats(tokens * hidden), routing = random_floats(tokens * top_k);
  std::vector<int32_t> ids(static_cast<std::size_t>(tokens * top_k));
  for (std::size_t i = 0; i < ids.size(); ++i)
    ids[i] = static_cast<int32_t>((i * 7 + i / 3) % 6) - 1;  // -1: skipped
  Floats together(static_cast<std::size_t>(tokens * hidden)), alone(together.size());
  moe(const_rows(x, tokens, hidden), weights, ids.data(), routing.data(), top_k, false,
      rows_of(together, tokens, hidden));
  for (int64_t t = 0; t < tokens; ++t) {
    const float* token = &x[static_cast<std::size_t>(t * hidden)];
    float* out = &alone[static_cast<std::size_t>(t * hidden)];
    moe({token, 1, hidden, hidden}, weights, &ids[static_cast<std::size_t>(t * top_k)],
        &routing[static_cast<std::size_t>(t * top_k)], top_k, false, {out, 1, hidden, hidden});
    Floats expected(static_cast<std::size_t>(hidden));
    for (int64_t i = 0; i < top_k; ++i) {
      const int32_t id = ids[static_cast<std::size_t>(t * top_k + i)];
      if (id < 0) continue;
      const auto e = static_cast<std::size_t>(id);
      Floats gate = product(token, held(gates[e]).data(), width, hidden);
      const Floats up = product(token, held(ups[e]).data(), width, hidden);
      for (std::size_t j = 0; j < gate.size(); ++j)
        gate[j] = gate[j] / (1 + std::exp(-gate[j])) * up[j];
      const Floats y = product(gate.data(), held(downs[e]).data(), hidden, width);
      for (std::size_t j = 0; j < y.size(); ++j)
        expected[j] += routing[static_cast<std::size_t>(t * top_k + i)] * y[j];
    }
    check_close(Floats(out, out + hidden), expected, 0.05f);
  }
  CHECK(together == alone);
}

void test_rows() {
  const int64_t t = 9, m = 77;
  const Floats x = random_floats(t * m), weight = random_floats(m);
  Floats out(x.size()), expected(x.size());
  rms_norm(const_rows(x, t, m), weight.data(), 1e-6f, rows_of(out, t, m));
  for (std::size_t i = 0; i < x.size(); ++i) {
    const std::size_t row = i / static_cast<std::size_t>(m) * static_cast<std::size_t>(m);
    double sum = 0;
    for (std::size_t j = 0; j < static_cast<std::size_t>(m); ++j)
      sum += static_cast<double>(x[row + j]) * x[row + j];
    expected[i] =
        static_cast<float>(x[i] / std::sqrt(sum / static_cast<double>(m) + 1e-6)) * weight[i - row];
  }
  check_close(out, expected, 1e-5f);

  Floats activated(static_cast<std::size_t>(t * 38));
  silu_mul({x.data(), t, 76, m}, rows_of(activated, t, 38));
  for (std::size_t i = 0; i < activated.size(); ++i) {
    const std::size_t row = i / 38, col = i % 38;
    const float gate = x[row * 77 + col], up = x[row * 77 + 38 + col];
    CHECK(std::abs(activated[i] - gate / (1 + std::exp(-gate)) * up) < 1e-5f);
  }

  std::vector<int32_t> ids(static_cast<std::size_t>(t * 4));
  Floats chosen(ids.size());
  CHECK(router_topk(const_rows(x, t, m), 4, true, ids.data(), chosen.data()));
  for (std::size_t row = 0; row < static_cast<std::size_t>(t); ++row) {
    float sum = 0;
    for (std::size_t i = 0; i < 4; ++i) {
      sum += chosen[row * 4 + i];
      if (i > 0)
        CHECK(x[row * 77 + static_cast<std::size_t>(ids[row * 4 + i])] <=
              x[row * 77 + static_cast<std::size_t>(ids[row * 4 + i - 1])]);
    }
    CHECK(std::abs(sum - 1) < 1e-5f);
  }
  Floats bad = x;
  bad[100] = std::nanf("");
  CHECK(!router_topk(const_rows(bad, t, m), 4, true, ids.data(), chosen.data()));
}

// Fused rows go through rope_and_store into a pool and are attended to, in one chunk and one by
// one; then one query is compared with plain loops.
void test_attention(DType dtype, int64_t window) {
  const int64_t q_heads = 6, kv_heads = 2, d = 40, tokens = 150, page_tokens = 16, layers = 2;
  const KvGeometry geometry = {layers, page_tokens, kv_heads, d, dtype};
  const int64_t pages = 10, width = (q_heads + 2 * kv_heads) * d, half = d / 2;
  const Floats cos = random_floats(tokens * half), sin = random_floats(tokens * half);
  const Floats norm = random_floats(d), original = random_floats(tokens * width);
  std::vector<int32_t> page_table(static_cast<std::size_t>(pages));
  for (int64_t i = 0; i < pages; ++i)
    page_table[static_cast<std::size_t>(i)] = static_cast<int32_t>(i * 7 % pages);
  std::vector<int32_t> positions(static_cast<std::size_t>(tokens));
  std::vector<int64_t> slots(positions.size());
  for (int64_t t = 0; t < tokens; ++t) {
    positions[static_cast<std::size_t>(t)] = static_cast<int32_t>(t);
    slots[static_cast<std::size_t>(t)] =
        page_table[static_cast<std::size_t>(t / page_tokens)] * page_tokens + t % page_tokens;
  }
  const float scale = 1 / std::sqrt(static_cast<float>(d));

  const auto run = [&](int64_t step) {
    Floats qkv = original, out(static_cast<std::size_t>(tokens * q_heads * d));
    std::vector<uint8_t> pool(static_cast<std::size_t>(pages * geometry.page_bytes()), 0xff);
    for (int64_t first = 0; first < tokens; first += step) {
      const int64_t count = std::min(step, tokens - first);
      float* rows = &qkv[static_cast<std::size_t>(first * width)];
      rope_and_store({rows, width, &positions[static_cast<std::size_t>(first)], count, q_heads,
                      kv_heads, d, d, cos.data(), sin.data(), norm.data(), norm.data(), 1e-6f,
                      &slots[static_cast<std::size_t>(first)], page_tokens, geometry.page_bytes(),
                      geometry.k_plane(pool.data(), 1), geometry.v_plane(pool.data(), 1), dtype});
      const std::vector<int32_t> starts = {0, static_cast<int32_t>(count)};
      const int32_t context = static_cast<int32_t>(first + count);
      paged_attention({rows, width, d, q_heads, pool.data(), geometry, 1, page_table.data(), pages,
                       starts.data(), &context, 1, scale, window, nullptr,
                       &out[static_cast<std::size_t>(first * q_heads * d)], q_heads * d, d});
    }
    return std::pair(qkv, out);
  };
  const auto [qkv, together] = run(tokens);
  CHECK(run(1).second == together);
  CHECK(run(33).second == together);

  const int64_t t = 140, head = 4, kv_head = head / (q_heads / kv_heads);
  const auto element = [&](int64_t token, int64_t at, int64_t i) {
    return qkv[static_cast<std::size_t>(token * width + at * d + i)];
  };
  std::vector<double> weights;
  const int64_t first = window > 0 ? t + 1 - window : 0;
  double sum = 0;
  for (int64_t j = first; j <= t; ++j) {
    double score = 0;
    for (int64_t i = 0; i < d; ++i)
      score += static_cast<double>(element(t, head, i)) * element(j, q_heads + kv_head, i);
    weights.push_back(std::exp(score * scale));
    sum += weights.back();
  }
  for (int64_t i = 0; i < d; ++i) {
    double expected = 0;
    for (int64_t j = first; j <= t; ++j)
      expected += weights[static_cast<std::size_t>(j - first)] / sum *
                  element(j, q_heads + kv_heads + kv_head, i);
    const float got = together[static_cast<std::size_t>((t * q_heads + head) * d + i)];
    CHECK(std::abs(got - expected) < (dtype == DType::kF32 ? 1e-4 : 0.1));
  }
}

}  // namespace

int main() {
  for (const int threads : {1, 3}) {
    ThreadPool::instance().set_num_threads(threads);
    for (const std::string& isa : available_isas()) {
      request_isa(isa);
      for (const DType dtype : {DType::kF32, DType::kBf16}) {
        test_linear(dtype);
        test_moe(dtype);
        test_attention(dtype, 0);
        test_attention(dtype, 30);
      }
      test_rows();
    }
  }
}
