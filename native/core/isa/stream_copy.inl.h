// The loop of stream_copy, which each instruction set compiles with its own vectors.
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace {

// Isa: a Vector, load() of one from anywhere, stream() of one past the caches to an aligned place.
// The caller fences.
template <typename Isa>
void stream_lines(std::byte* to, const std::byte* from, std::size_t bytes) {
  using Vector = typename Isa::Vector;
  constexpr std::size_t kLine = 64;
  constexpr std::size_t kStep = 4 * sizeof(Vector);
  std::size_t head = (0 - reinterpret_cast<std::uintptr_t>(to)) % kLine;
  if (head > bytes) head = bytes;
  std::memcpy(to, from, head);
  to += head;
  from += head;
  bytes -= head;
  for (; bytes >= kStep; to += kStep, from += kStep, bytes -= kStep) {
    const auto* source = reinterpret_cast<const Vector*>(from);
    auto* target = reinterpret_cast<Vector*>(to);
    const Vector a = Isa::load(source);
    const Vector b = Isa::load(source + 1);
    const Vector c = Isa::load(source + 2);
    const Vector d = Isa::load(source + 3);
    Isa::stream(target, a);
    Isa::stream(target + 1, b);
    Isa::stream(target + 2, c);
    Isa::stream(target + 3, d);
  }
  std::memcpy(to, from, bytes);
}

}  // namespace
