// What this machine allows a kernel: how fast its processors read memory together, and how many
// multiply-adds they do per second. Measured, because neither is written anywhere.
#pragma once

#include <cstddef>
#include <string>

#include "aligned_buffer.h"
#include "formats.h"
#include "thread_pool.h"

namespace inlay::kernels {

// Bytes to read so that caches do not matter: 32 MiB per thread, several times any processor's
// share of the last-level cache, and at least 512 MiB.
std::size_t memory_probe_bytes(int num_threads);

// A buffer of that size with its pages in place, written by the pool's threads.
AlignedBuffer memory_probe(ThreadPool& pool);

// GB/s (10^9 bytes) at which the pool's threads read `probe` together: the better of one stream per
// thread and four streams with prefetch. Two passes, 20 ms for 512 MiB at 50 GB/s.
double measure_read_gbs(ThreadPool& pool, const AlignedBuffer& probe);

// TOP/s (10^12 operations, two per multiply-add) of the pool's threads together with the widest
// instruction for these operands that processor and OS offer; without one, what fp32 reaches. The
// best of several samples, about 10 ms.
double measure_peak_tops(ThreadPool& pool, Operand operand);

}  // namespace inlay::kernels
