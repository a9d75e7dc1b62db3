// Every operator on every variant that this machine runs: against plain loops, and a token alone
// against the same token in a batch, bit for bit. The Python tests go wider; these run under the
// sanitizers and on emulated processors. Arguments: the variants to test instead.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <random>
#include <string>
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

float rounded_to_bf16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000;
  std::memcpy(&value, &bits, 4);
  return value;
}

// How far a result may be from one on unrounded activations, relative L2.
float tolerance(Format format) {
  const Operand operand = info(format).operand;
  return operand == Operand::kF32 ? 1e-5f : operand == Operand::kBf16 ? 0.005f : 0.02f;
}

void check_error(const Floats& result, const Floats& expected, float bound) {
  CHECK(result.size() == expected.size());
  double error = 0, norm = 0;
  for (std::size_t i = 0; i < result.size(); ++i) {
    const double off = static_cast<double>(result[i]) - expected[i];
    error += off * off;
    norm += static_cast<double>(expected[i]) * expected[i];
  }
  CHECK(std::sqrt(error) <= bound * std::sqrt(norm));
}

SourceMatrix source(const char* name, const Floats& values, int64_t rows, int64_t cols) {
  return {name, values.data(), DType::kF32, rows, cols, cols};
}

void test_linear(Format format) {
  for (const auto& [t, k, n] : {std::tuple{1, 1, 1},
                                {5, 33, 70},
                                {13, 1100, 129},
                                {40, 600, 33},
                                {99, 64, 64},
                                {200, 7, 300}}) {
    const Floats x = random_floats(t * k), w = random_floats(n * k), bias = random_floats(n);
    LinearWeight weight(n, k, format);
    weight.set_rows(0, source("w", w, n, k));
    Floats values(w.size());
    weight.dequantize(values.data());
    Floats out = random_floats(t * n), expected = out, seen = x;
    if (info(format).operand == Operand::kBf16)
      for (float& value : seen) value = rounded_to_bf16(value);
    for (int64_t i = 0; i < t; ++i) {
      const Floats y = product(&seen[static_cast<std::size_t>(i * k)], values.data(), n, k);
      for (int64_t j = 0; j < n; ++j)
        expected[static_cast<std::size_t>(i * n + j)] +=
            y[static_cast<std::size_t>(j)] + bias[static_cast<std::size_t>(j)];
    }
    linear(const_rows(x, t, k), weight, bias.data(), true, rows_of(out, t, n));
    check_error(out, expected, info(format).operand == Operand::kI8 ? 0.02f : 1e-5f);

    Floats together(static_cast<std::size_t>(t * n)), alone(together.size());
    linear(const_rows(x, t, k), weight, nullptr, false, rows_of(together, t, n));
    for (int64_t i = 0; i < t; ++i)
      linear({&x[static_cast<std::size_t>(i * k)], 1, k, k}, weight, nullptr, false,
             {&alone[static_cast<std::size_t>(i * n)], 1, n, n});
    CHECK(together == alone);
  }
}

// Blocks of any bits but those that could make a number in float16 infinite.
void test_blocks(Format format) {
  const int64_t k = 512, n = 70;
  std::vector<std::byte> blocks(static_cast<std::size_t>(n * block_row_bytes(format, k)));
  for (std::byte& byte : blocks) byte = static_cast<std::byte>(generator() & 0x3f);
  LinearWeight weight(n, k, format);
  weight.set_rows(0, BlockMatrix{"blocks", blocks.data(), n, k, block_row_bytes(format, k)});
  Floats values(static_cast<std::size_t>(n * k));
  weight.dequantize(values.data());
  for (const int64_t t : {1, 3, 40}) {
    const Floats x = random_floats(t * k);
    Floats together(static_cast<std::size_t>(t * n)), alone(together.size()), expected;
    for (int64_t i = 0; i < t; ++i) {
      const Floats y = product(&x[static_cast<std::size_t>(i * k)], values.data(), n, k);
      expected.insert(expected.end(), y.begin(), y.end());
      linear({&x[static_cast<std::size_t>(i * k)], 1, k, k}, weight, nullptr, false,
             {&alone[static_cast<std::size_t>(i * n)], 1, n, n});
    }
    linear(const_rows(x, t, k), weight, nullptr, false, rows_of(together, t, n));
    check_error(together, expected, 0.02f);
    CHECK(together == alone);
  }
}

// bf16 on tiles is one order of additions, for few rows as for many: over 32 steps of K the even
// and the odd products are summed apart, from zero, then added.
void test_order_of_tiles() {
  const int64_t t = 20, k = 70, n = 65;
  const Floats x = random_floats(t * k), w = random_floats(n * k);
  LinearWeight weight(n, k, Format::kBf16);
  weight.set_rows(0, source("w", w, n, k));
  Floats values(w.size()), out(static_cast<std::size_t>(t * n));
  weight.dequantize(values.data());
  linear(const_rows(x, t, k), weight, nullptr, false, rows_of(out, t, n));
  for (int64_t i = 0; i < t; ++i)
    for (int64_t j = 0; j < n; ++j) {
      float sum = 0;
      for (int64_t first = 0; first < k; first += 32) {
        float parts[2] = {0, 0};
        for (int64_t step = first; step < std::min(k, first + 32); ++step)
          parts[step % 2] =
              std::fma(rounded_to_bf16(x[static_cast<std::size_t>(i * k + step)]),
                       values[static_cast<std::size_t>(j * k + step)], parts[step % 2]);
        sum += parts[0] + parts[1];
      }
      CHECK(out[static_cast<std::size_t>(i * n + j)] == sum);
    }
}

// Biases, a mask, skipped ids, and shared experts of another width.
void test_moe(Format format) {
  const int64_t experts = 5, hidden = 70, top_k = 3, tokens = 40;
  struct Plain {
    Floats gate, up, down, gate_bias, up_bias, down_bias;
  };
  const auto make = [&](int64_t count, int64_t width, std::vector<Plain>& plain) {
    ExpertWeights weights(count, hidden, width, {format, format}, true);
    for (int64_t e = 0; e < count; ++e) {
      Plain p = {random_floats(width * hidden), random_floats(width * hidden),
                 random_floats(hidden * width), random_floats(width),
                 random_floats(width),          random_floats(hidden)};
      weights.set(e, source("gate", p.gate, width, hidden), source("up", p.up, width, hidden),
                  source("down", p.down, hidden, width));
      weights.set_bias(e, p.gate_bias.data(), p.up_bias.data(), p.down_bias.data());
      weights.dequantize(e, p.gate.data(), p.up.data(), p.down.data());
      plain.push_back(std::move(p));
    }
    return weights;
  };
  std::vector<Plain> routed_plain, shared_plain;
  const ExpertWeights routed = make(experts, 45, routed_plain);
  const ExpertWeights shared = make(1, 96, shared_plain);
  const auto add_expert = [&](const Plain& p, const float* x, float weight, Floats& y) {
    const int64_t width = static_cast<int64_t>(p.gate_bias.size());
    Floats gate = product(x, p.gate.data(), width, hidden);
    const Floats up = product(x, p.up.data(), width, hidden);
    for (std::size_t j = 0; j < gate.size(); ++j) {
      const float g = gate[j] + p.gate_bias[j];
      gate[j] = g / (1 + std::exp(-g)) * (up[j] + p.up_bias[j]);
    }
    const Floats down = product(gate.data(), p.down.data(), hidden, width);
    for (std::size_t j = 0; j < y.size(); ++j) y[j] += weight * (down[j] + p.down_bias[j]);
  };

  const Floats x = random_floats(tokens * hidden), routing = random_floats(tokens * top_k);
  std::vector<int32_t> ids(static_cast<std::size_t>(tokens * top_k));
  for (std::size_t i = 0; i < ids.size(); ++i)
    ids[i] = static_cast<int32_t>((i * 7 + i / 3) % 6) - 1;  // -1: skipped
  const uint8_t mask[experts] = {1, 1, 0, 1, 1};
  Floats together(static_cast<std::size_t>(tokens * hidden)), alone(together.size()), expected;
  const Moe all = {const_rows(x, tokens, hidden),
                   &routed,
                   ids.data(),
                   routing.data(),
                   top_k,
                   mask,
                   Activation{},
                   &shared,
                   false,
                   rows_of(together, tokens, hidden)};
  moe(all);
  for (int64_t t = 0; t < tokens; ++t) {
    const float* token = &x[static_cast<std::size_t>(t * hidden)];
    Moe one = all;
    one.x_TM = {token, 1, hidden, hidden};
    one.expert_ids_TK += t * top_k;
    one.routing_TK += t * top_k;
    one.out_TM = {&alone[static_cast<std::size_t>(t * hidden)], 1, hidden, hidden};
    moe(one);
    Floats y(static_cast<std::size_t>(hidden));
    add_expert(shared_plain[0], token, 1, y);
    for (int64_t i = 0; i < top_k; ++i) {
      const int32_t id = one.expert_ids_TK[i];
      if (id >= 0 && mask[id] != 0)
        add_expert(routed_plain[static_cast<std::size_t>(id)], token, one.routing_TK[i], y);
    }
    expected.insert(expected.end(), y.begin(), y.end());
  }
  CHECK(together == alone);
  check_error(together, expected, 2 * tolerance(format));
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
  RouterRules rules;
  rules.normalize = true;
  CHECK(router_topk(const_rows(x, t, m), 4, rules, ids.data(), chosen.data()));
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
  CHECK(!router_topk(const_rows(bad, t, m), 4, rules, ids.data(), chosen.data()));
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
      rope_and_store({rows,
                      width,
                      &positions[static_cast<std::size_t>(first)],
                      count,
                      q_heads,
                      kv_heads,
                      d,
                      0,
                      d,
                      cos.data(),
                      sin.data(),
                      norm.data(),
                      norm.data(),
                      1e-6f,
                      window != 0,
                      &slots[static_cast<std::size_t>(first)],
                      page_tokens,
                      geometry.page_bytes(),
                      geometry.k_plane(pool.data(), 1),
                      geometry.v_plane(pool.data(), 1),
                      dtype});
      const std::vector<int32_t> starts = {0, static_cast<int32_t>(count)};
      const int32_t context = static_cast<int32_t>(first + count);
      paged_attention({rows,
                       width,
                       d,
                       q_heads,
                       pool.data(),
                       geometry,
                       1,
                       page_table.data(),
                       pages,
                       starts.data(),
                       &context,
                       1,
                       scale,
                       window,
                       nullptr,
                       0.0F,
                       &out[static_cast<std::size_t>(first * q_heads * d)],
                       q_heads * d,
                       d,
                       d});
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

int main(int count, char** arguments) {
  std::vector<std::string> isas(arguments + 1, arguments + count);
  if (isas.empty()) isas = available_isas();
  for (const int threads : {1, 3}) {
    ThreadPool::instance().set_num_threads(threads);
    for (const std::string& isa : isas) {
      request_isa(isa);
      for (std::size_t i = 0; i < std::size(kFormats); ++i) {
        if (has_blocks(static_cast<Format>(i))) {
          test_blocks(static_cast<Format>(i));
          continue;
        }
        test_linear(static_cast<Format>(i));
        test_moe(static_cast<Format>(i));
      }
      for (const DType dtype : {DType::kF32, DType::kBf16}) {
        test_attention(dtype, 0);
        test_attention(dtype, 30);
      }
      test_rows();
      if (isa == "amx" || isa == "amx_emulated") test_order_of_tiles();
    }
  }
}
