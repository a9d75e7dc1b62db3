// Every variant against memcpy, at every alignment, and nothing written outside the target.
#include "../core/stream_copy.h"

#include <cstring>
#include <random>
#include <vector>

#include "check.h"

namespace {

using inlay::StreamCopy;

void check_variant(StreamCopy copy) {
  constexpr std::size_t kSize = 5000;
  constexpr std::size_t kLargeSize = 300000;
  constexpr std::byte kGuard{0xa5};
  std::mt19937 random(1);
  std::vector<std::byte> from(kLargeSize + 128);
  for (std::byte& byte : from) byte = static_cast<std::byte>(random());
  for (int round = 0; round < 4000; ++round) {
    const std::size_t most = round < 3900 ? kSize : kLargeSize;
    const std::size_t bytes = round < 600 ? static_cast<std::size_t>(round) : random() % most;
    const std::size_t to_shift = random() % 64;
    const std::size_t from_shift = random() % 64;
    std::vector<std::byte> to(bytes + 256, kGuard);
    copy(to.data() + 64 + to_shift, from.data() + from_shift, bytes);
    CHECK(std::memcmp(to.data() + 64 + to_shift, from.data() + from_shift, bytes) == 0);
    for (std::size_t i = 0; i < 64 + to_shift; ++i) CHECK(to[i] == kGuard);
    for (std::size_t i = 64 + to_shift + bytes; i < to.size(); ++i) CHECK(to[i] == kGuard);
  }
}

}  // namespace

int main() {
  check_variant(inlay::stream_copy_baseline());
  if (inlay::stream_copy_avx2() != nullptr) {
    check_variant(inlay::stream_copy_avx2());
    check_variant(inlay::stream_copy_avx2_lanes());
  }
  check_variant(inlay::stream_copy);
  CHECK(!inlay::is_streaming(inlay::kStreamingFrom - 1));
  CHECK(inlay::is_streaming(inlay::kStreamingFrom));
}
