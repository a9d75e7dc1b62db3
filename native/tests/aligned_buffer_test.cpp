// Alignment, zeroes, growth and the memory policy of buffers of every kind.
#include "../kernels/aligned_buffer.h"

#include <cstdint>
#include <cstdio>
#include <utility>

#include "../kernels/topology.h"
#include "check.h"
#include "memory_policy.h"

namespace {

using inlay::kernels::AlignedBuffer;

constexpr std::size_t kMiB = std::size_t{1} << 20;

void check_usable(const AlignedBuffer& buffer, std::size_t size) {
  CHECK(buffer.size() == size);
  CHECK(reinterpret_cast<std::uintptr_t>(buffer.data()) % 64 == 0);
  for (std::size_t i = 0; i < size; i += 511) CHECK(buffer.data()[i] == std::byte{0});
  if (size == 0) return;
  buffer.data()[0] = buffer.data()[size - 1] = std::byte{1};
}

void test_sizes() {
  for (const int node : {-1, 0, 1, 63, 5000})
    for (const std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{4095},
                                   std::size_t{4096}, kMiB + 5, 4 * kMiB, 9 * kMiB + 1})
      check_usable(AlignedBuffer(size, node), size);
}

void test_parts() {
  for (const std::size_t size : {std::size_t{1}, kMiB + 5, 9 * kMiB + 1}) {
    AlignedBuffer buffer(size);
    for (const int node : {-1, 0, 63, 5000}) buffer.prefer_node(size / 3, size, node);
    check_usable(buffer, size);
  }
}

void test_moving_and_growing() {
  for (const int node : {-1, 0}) {
    AlignedBuffer first(5 * kMiB, node);
    first.data()[7] = std::byte{42};
    AlignedBuffer second(std::move(first));
    CHECK(second.data()[7] == std::byte{42});
    CHECK(first.data() == nullptr && first.size() == 0);
    second.reserve(kMiB);
    CHECK(second.size() == 5 * kMiB);
    second.reserve(6 * kMiB);
    CHECK(second.size() >= 6 * kMiB);
    CHECK(second.data()[7] == std::byte{0});
  }
}

// Bound as reserved, also what grew, wherever the system lets us bind at all.
void test_memory_policy() {
  const int node = inlay::kernels::read_topology().nodes.front().memory_node;
  unsigned long nodes = 0;
  if (node < 0 || node >= 64 || !policies_can_be_set()) {
    std::puts("no memory policies here: not tested");
    return;
  }
  for (const std::size_t size : {std::size_t{8192}, 8 * kMiB}) {
    AlignedBuffer bound(size, node);
    CHECK(policy_of(bound.data(), nodes) == MPOL_PREFERRED && nodes == 1ul << node);
    bound.reserve(2 * size);
    CHECK(policy_of(bound.data(), nodes) == MPOL_PREFERRED && nodes == 1ul << node);
  }
  // Parts; the first page of the second one is the first one's as well, and stays with the second.
  AlignedBuffer parts(8 * kMiB + 5);
  parts.prefer_node(3 * kMiB, parts.size(), node);
  CHECK(policy_of(parts.data() + 2 * kMiB - 1, nodes) == MPOL_DEFAULT);
  for (const std::size_t at : {2 * kMiB, 8 * kMiB + 4})
    CHECK(policy_of(parts.data() + at, nodes) == MPOL_PREFERRED && nodes == 1ul << node);
}

}  // namespace

int main() {
  test_sizes();
  test_parts();
  test_moving_and_growing();
  test_memory_policy();
}
