#include "limits.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>

#include "cpu_features.h"
#include "peak_loops.h"

namespace inlay::kernels {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Threads draw these one by one; large enough that the start of a stream costs nothing.
constexpr std::size_t kBlock = std::size_t{32} << 20;

using Vector = int64_t __attribute__((vector_size(16)));
constexpr std::size_t kLine = 64;
constexpr std::size_t kVectors = kLine / sizeof(Vector);

// Loads of 16 bytes are as fast as wider ones here: memory is the bound by far.
void read_line(const std::byte* line, Vector (&sums)[kVectors]) {
  const Vector* vectors = reinterpret_cast<const Vector*>(line);
  for (std::size_t i = 0; i < kVectors; ++i) sums[i] ^= vectors[i];
}

// Makes the compiler believe that the sums are used.
void keep(Vector (&sums)[kVectors]) { __asm__ volatile("" : : "m"(sums)); }

void read_one_stream(const std::byte* block) {
  Vector sums[kVectors] = {};
  for (std::size_t at = 0; at < kBlock; at += kLine) read_line(block + at, sums);
  keep(sums);
}

void read_four_streams(const std::byte* block) {
  constexpr std::size_t kStreams = 4, kPart = kBlock / kStreams, kStep = 2 * kLine;
  constexpr std::size_t kAhead = 2048;
  Vector sums[kVectors] = {};
  for (std::size_t at = 0; at < kPart; at += kStep)
    for (std::size_t stream = 0; stream < kStreams; ++stream) {
      const std::byte* lines = block + stream * kPart + at;
      __builtin_prefetch(lines + kAhead);
      __builtin_prefetch(lines + kAhead + kLine);
      read_line(lines, sums);
      read_line(lines + kLine, sums);
    }
  keep(sums);
}

const PeakLoop& best_loop(Operand operand) {
#if defined(__x86_64__)
  const CpuFeatures f = detect_cpu_features();
  const bool tiles = f.amx_tile && allow_amx().empty();
  if (operand == Operand::kI8) {
    if (tiles && f.amx_int8) return kInt8Amx;
    if (f.avx512_vnni) return kInt8Avx512Vnni;
    if (f.avx512bw) return kInt8Avx512;
    if (f.avx_vnni) return kInt8Avx2Vnni;
    if (f.avx2) return kInt8Avx2;
  }
  if (operand == Operand::kBf16 && tiles && f.amx_bf16) return kBf16Amx;
  if (operand == Operand::kBf16 && f.avx512_bf16) return kBf16Avx512;
  if (f.avx512f) return kFp32Avx512;
  if (f.avx2 && f.fma) return kFp32Avx2;
#else
  (void)operand;
#endif
  return kFp32Portable;
}

}  // namespace

std::size_t memory_probe_bytes(int num_threads) {
  return std::max(std::size_t{512} << 20, static_cast<std::size_t>(num_threads) * kBlock);
}

AlignedBuffer memory_probe(ThreadPool& pool) {
  ThreadPool::Session session(pool);
  AlignedBuffer probe(memory_probe_bytes(session.num_threads()));
  session.parallel_for(static_cast<int64_t>(probe.size() / kBlock), [&](int64_t block, int) {
    std::memset(probe.data() + static_cast<std::size_t>(block) * kBlock, 1, kBlock);
  });
  return probe;
}

double measure_read_gbs(ThreadPool& pool, const AlignedBuffer& probe) {
  ThreadPool::Session session(pool);
  const int64_t blocks = static_cast<int64_t>(probe.size() / kBlock);
  double best_s = 1e30;
  for (const auto read : {read_one_stream, read_four_streams}) {
    const Clock::time_point start = Clock::now();
    session.parallel_for(blocks, [&](int64_t block, int) {
      read(probe.data() + static_cast<std::size_t>(block) * kBlock);
    });
    best_s = std::min(best_s, seconds_since(start));
  }
  return static_cast<double>(blocks) * kBlock / best_s / 1e9;
}

double measure_peak_tops(ThreadPool& pool, Operand operand) {
  constexpr int kSamples = 3;
  constexpr int64_t kCallsPerThread = 64;  // of about 50 us, so that a late thread costs little
  ThreadPool::Session session(pool);
  const PeakLoop& loop = best_loop(operand);
  const int64_t calls = kCallsPerThread * session.num_threads();
  double best_s = 1e30;
  for (int sample = 0; sample < kSamples; ++sample) {
    const Clock::time_point start = Clock::now();
    session.parallel_for(calls, [&](int64_t, int) { loop.run(); });
    best_s = std::min(best_s, seconds_since(start));
  }
  return static_cast<double>(calls) * static_cast<double>(loop.operations) / best_s / 1e12;
}

}  // namespace inlay::kernels
