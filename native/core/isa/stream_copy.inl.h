// The loop of stream_copy, which each instruction set compiles with its own vectors.
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "stream_lanes.h"

namespace {

// Isa: a Vector, load() of one from anywhere, stream() of one past the caches to an aligned place.
// Copies whole steps of four vectors; returns how many bytes.
template <typename Isa>
std::size_t stream_steps(std::byte* to, const std::byte* from, std::size_t bytes) {
  using Vector = typename Isa::Vector;
  constexpr std::size_t kStep = 4 * sizeof(Vector);
  std::size_t done = 0;
  for (; bytes - done >= kStep; done += kStep) {
    const auto* source = reinterpret_cast<const Vector*>(from + done);
    auto* target = reinterpret_cast<Vector*>(to + done);
    const Vector a = Isa::load(source);
    const Vector b = Isa::load(source + 1);
    const Vector c = Isa::load(source + 2);
    const Vector d = Isa::load(source + 3);
    Isa::stream(target, a);
    Isa::stream(target + 1, b);
    Isa::stream(target + 2, c);
    Isa::stream(target + 3, d);
  }
  return done;
}

// So many lanes at a time, then one. The caller fences.
template <typename Isa, std::size_t kLanes>
void stream_lines(std::byte* to, const std::byte* from, std::size_t bytes) {
  constexpr std::size_t kLine = 64;
  std::size_t head = (0 - reinterpret_cast<std::uintptr_t>(to)) % kLine;
  if (head > bytes) head = bytes;
  std::memcpy(to, from, head);
  to += head;
  from += head;
  bytes -= head;
  constexpr std::size_t kTogether = kLanes * inlay::isa::kStreamLaneBytes;
  if constexpr (kLanes > 1)
    for (; bytes >= kTogether; to += kTogether, from += kTogether, bytes -= kTogether)
      for (std::size_t run = 0; run < inlay::isa::kStreamLaneBytes;
           run += inlay::isa::kStreamRunBytes)
        for (std::size_t at = run; at < kTogether; at += inlay::isa::kStreamLaneBytes)
          stream_steps<Isa>(to + at, from + at, inlay::isa::kStreamRunBytes);
  const std::size_t done = stream_steps<Isa>(to, from, bytes);
  std::memcpy(to + done, from + done, bytes - done);
}

}  // namespace
