// The loop of stream_copy, which each instruction set compiles with its own vectors.
#include <cstddef>
#include <cstdint>
#include <cstring>

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

// In several places in turn: the processor reads ahead of each, but none past the end of its page,
// so that one alone waits for memory at each page. The caller fences.
template <typename Isa>
void stream_lines(std::byte* to, const std::byte* from, std::size_t bytes) {
  constexpr std::size_t kLine = 64;
  constexpr std::size_t kLanes = 4;
  constexpr std::size_t kLaneBytes = std::size_t{16} << 10;
  constexpr std::size_t kRunBytes = 256;
  std::size_t head = (0 - reinterpret_cast<std::uintptr_t>(to)) % kLine;
  if (head > bytes) head = bytes;
  std::memcpy(to, from, head);
  to += head;
  from += head;
  bytes -= head;
  for (; bytes >= kLanes * kLaneBytes; bytes -= kLanes * kLaneBytes) {
    for (std::size_t run = 0; run < kLaneBytes; run += kRunBytes)
      for (std::size_t at = run; at < kLanes * kLaneBytes; at += kLaneBytes)
        stream_steps<Isa>(to + at, from + at, kRunBytes);
    to += kLanes * kLaneBytes;
    from += kLanes * kLaneBytes;
  }
  const std::size_t done = stream_steps<Isa>(to, from, bytes);
  std::memcpy(to + done, from + done, bytes - done);
}

}  // namespace
