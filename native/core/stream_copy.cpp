#include "stream_copy.h"

#include <cstring>

#include "isa/stream_copies.h"

namespace inlay {

namespace {

StreamCopy best() {
  const StreamCopy avx2 = copies_in_lanes() ? stream_copy_avx2_lanes() : stream_copy_avx2();
  return avx2 != nullptr ? avx2 : stream_copy_baseline();
}

}  // namespace

bool copies_in_lanes() {
#if defined(__x86_64__)
  return __builtin_cpu_is("intel");
#else
  return false;
#endif
}

StreamCopy stream_copy_baseline() { return isa::stream_copy_baseline; }

StreamCopy stream_copy_avx2() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) return isa::stream_copy_avx2;
#endif
  return nullptr;
}

StreamCopy stream_copy_avx2_lanes() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) return isa::stream_copy_avx2_lanes;
#endif
  return nullptr;
}

void stream_copy(std::byte* to, const std::byte* from, std::size_t bytes) {
  static const StreamCopy chosen = best();
  chosen(to, from, bytes);
}

void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes, bool streaming) {
  if (streaming)
    stream_copy(to, from, bytes);
  else if (bytes > 0)  // pointers to nothing may be null
    std::memcpy(to, from, bytes);
}

}  // namespace inlay
