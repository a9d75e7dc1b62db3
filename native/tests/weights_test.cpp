// Packed weights: pieces and shards hold what the whole holds, mapped memory is borrowed, and what
// is not finite is refused with its row.
#include "../kernels/weights.h"

#include <cmath>
#include <cstring>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "../core/errors.h"
#include "../kernels/processors.h"
#include "../kernels/thread_pool.h"
#include "check.h"
#include "memory_policy.h"

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

SourceMatrix rows_of(const char* name, const Floats& values, int64_t first, int64_t rows,
                     int64_t cols) {
  return {name, values.data() + first * cols, DType::kF32, rows, cols, cols};
}

bool same(const WeightMemory& a, const WeightMemory& b) {
  return a.size() == b.size() &&
         std::memcmp(a.data(), b.data(), static_cast<std::size_t>(a.size())) == 0;
}

template <typename Call>
std::string error_of(const Call& call) {
  try {
    call();
  } catch (const inlay::ArgumentError& error) {
    return error.what();
  }
  return "";
}

void test_linear(Format format) {
  for (const auto& [n, k] : {std::pair<int64_t, int64_t>{1, 1}, {70, 33}, {150, 200}}) {
    const Floats w = random_floats(n * k);
    LinearWeight whole(n, k, format), pieces(n, k, format);
    whole.set_rows(0, rows_of("w", w, 0, n, k));
    for (int64_t first = 0; first < n; first += 37)
      pieces.set_rows(first, rows_of("w", w, first, std::min<int64_t>(37, n - first), k));
    CHECK(same(whole.memory(), pieces.memory()));

    const LinearWeight mapped(n, k, format,
                              WeightMemory(whole.memory().data(), whole.size_bytes(), nullptr));
    Floats values(w.size()), again(w.size());
    whole.dequantize(values.data());
    mapped.dequantize(again.data());
    CHECK(values == again);
    CHECK(error_of([&] { LinearWeight(mapped).set_rows(0, rows_of("w", w, 0, 1, k)); }) != "");
    CHECK(error_of([&] {
            LinearWeight(n + 64, k, format,
                         WeightMemory(whole.memory().data(), whole.size_bytes(), nullptr));
          }) != "");

    if (info(format).scale != Scale::kNone) {
      const int64_t row_bytes = quantized_row_bytes(format, k);
      const int64_t scale_bytes = whole.layout().groups * quantized_scale_bytes(format);
      std::vector<std::byte> q(static_cast<std::size_t>(n * row_bytes));
      std::vector<std::byte> scales(static_cast<std::size_t>(n * scale_bytes));
      quantize(rows_of("w", w, 0, n, k), format, q.data(), scales.data());
      LinearWeight quantised(n, k, format);
      quantised.set_rows(
          0, QuantizedMatrix{"q", "scales", q.data(), scales.data(), n, k, row_bytes, scale_bytes});
      CHECK(same(whole.memory(), quantised.memory()));
    }

    Floats bad = w;
    bad[static_cast<std::size_t>(n * k - 1)] = std::nanf("");
    CHECK(error_of([&] { pieces.set_rows(0, rows_of("bad", bad, 0, n, k)); }) ==
          "bad: row " + std::to_string(n - 1) +
              " holds a NaN or an infinity, or a value that is one in this format; weights must "
              "be finite");
  }
}

// The panels of a matrix lie on the nodes of their threads; its bytes are the same on any.
void test_nodes(Format format) {
  const int64_t n = 3000, k = 500;
  const Floats w = random_floats(n * k);
  LinearWeight one(n, k, format);
  one.set_rows(0, rows_of("w", w, 0, n, k));
  ThreadPool::instance().set_topology(
      choose_topology(std::vector<std::vector<int>>(3, affinity_mask())));
  LinearWeight three(n, k, format);
  three.set_rows(0, rows_of("w", w, 0, n, k));
  const int node = ThreadPool::instance().topology().nodes.front().memory_node;
  ThreadPool::instance().set_topology(read_topology());
  CHECK(same(one.memory(), three.memory()));
  if (node < 0 || node >= 64 || !policies_can_be_set()) return;
  unsigned long nodes = 0;
  for (const int64_t at : {int64_t{0}, three.size_bytes() / 2, three.size_bytes() - 1}) {
    // Less than two huge pages lie anywhere.
    const bool bound = three.size_bytes() >= int64_t{4} << 20;
    CHECK(policy_of(three.memory().data() + at, nodes) == (bound ? MPOL_PREFERRED : MPOL_DEFAULT));
    CHECK(!bound || nodes == 1ul << node);
  }
}

// Panels of an expert that is set on so many nodes, after a look at the number of its shards.
template <typename Matrix>
std::vector<std::byte> panels_on(std::size_t nodes, std::size_t shards, Format format,
                                 int64_t hidden, int64_t width, const Matrix& gate,
                                 const Matrix& up, const Matrix& down) {
  ThreadPool::instance().set_topology(
      choose_topology(std::vector<std::vector<int>>(nodes, affinity_mask())));
  ExpertWeights experts(2, hidden, width, {format, format}, false);
  CHECK(experts.shards().size() == shards);
  experts.set(1, gate, up, down);
  std::vector<std::byte> panels(
      static_cast<std::size_t>(experts.gate_up_bytes() + experts.down_bytes()));
  experts.copy_panels(1, panels.data(), panels.data() + experts.gate_up_bytes());
  return panels;
}

// As many shards as nodes, where the width allows it.
void test_shards(Format format) {
  const int64_t hidden = 70;
  for (const int64_t width : {20, 300}) {
    const Floats gate = random_floats(width * hidden), up = random_floats(width * hidden),
                 down = random_floats(hidden * width);
    std::vector<std::vector<std::byte>> panels;
    for (const std::size_t nodes : {1, 3}) {
      panels.push_back(panels_on(nodes, width < 32 ? 1 : nodes, format, hidden, width,
                                 rows_of("gate", gate, 0, width, hidden),
                                 rows_of("up", up, 0, width, hidden),
                                 rows_of("down", down, 0, hidden, width)));
    }
    CHECK(panels[0] == panels[1]);
  }
  ThreadPool::instance().set_topology(read_topology());
}

// The same of blocks, of bits that make no number infinite; floats do not become them.
void test_blocks(Format format) {
  const int64_t hidden = 512, width = 1024;
  const auto matrix = [&](int64_t rows, int64_t cols) {
    std::vector<std::byte> blocks(static_cast<std::size_t>(rows * block_row_bytes(format, cols)));
    for (std::byte& byte : blocks) byte = static_cast<std::byte>(generator() & 0x3f);
    return blocks;
  };
  const auto gate = matrix(width, hidden), up = matrix(width, hidden), down = matrix(hidden, width);
  const auto blocks_of = [&](const std::vector<std::byte>& bytes, int64_t rows, int64_t cols) {
    return BlockMatrix{"w", bytes.data(), rows, cols, block_row_bytes(format, cols)};
  };
  std::vector<std::vector<std::byte>> panels;
  for (const std::size_t nodes : {1, 3}) {
    panels.push_back(panels_on(nodes, nodes, format, hidden, width, blocks_of(gate, width, hidden),
                               blocks_of(up, width, hidden), blocks_of(down, hidden, width)));
  }
  CHECK(panels[0] == panels[1]);
  ThreadPool::instance().set_topology(read_topology());
  LinearWeight weight(3, 512, format);
  const Floats floats = random_floats(3 * 512);
  CHECK(error_of([&] { weight.set_rows(0, rows_of("w", floats, 0, 3, 512)); }) != "");
}

}  // namespace

int main() {
  for (std::size_t i = 0; i < std::size(kFormats); ++i) {
    if (has_blocks(static_cast<Format>(i))) {
      test_blocks(static_cast<Format>(i));
      continue;
    }
    test_linear(static_cast<Format>(i));
    test_nodes(static_cast<Format>(i));
    test_shards(static_cast<Format>(i));
  }
}
