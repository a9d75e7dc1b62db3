// Panels of ggml's blocks: cut into words, which go beside those of the other columns, and nothing
// else. Blocks are not taken apart here.
#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <limits>
#include <string>

#include "../core/errors.h"
#include "isa.h"
#include "panels.h"
#include "thread_pool.h"

namespace inlay::kernels {
namespace {

constexpr int64_t kNoRow = std::numeric_limits<int64_t>::max();

uint32_t half_at(const std::byte* block, int64_t offset) {
  uint16_t half;
  std::memcpy(&half, block + offset, sizeof half);
  return half;
}

bool is_finite_half(uint32_t half) { return (half & 0x7c00u) != 0x7c00u; }

// The float16 numbers of a block are finite, and so are all its weights then.
bool is_finite(Format format, const std::byte* block) {
  const BlockInfo& f = info(format).block;
  const auto finite = [block](int64_t offset) { return is_finite_half(half_at(block, offset)); };
  switch (format) {
    case Format::kNvFp4:  // its scales have no infinity, and what is no number counts as 0
      return true;
    case Format::kQ2K:
      return finite(80) && finite(82);
    case Format::kIq4Xs:
      return finite(0);
    case Format::kIq1M:  // the highest four bits of each of four halves
      return is_finite_half((half_at(block, 52) >> 12) << 8 | (half_at(block, 54) >> 12) << 12);
    default:
      return f.half_at == kNoHalf ? finite(0) && finite(2) : finite(f.half_at);
  }
}

// Rows to columns; the number of the first one that is not finite, or kNoRow.
int64_t pack(Format format, const PanelJob<BlockMatrix>& job) {
  const BlockInfo& f = info(format).block;
  const BlockMatrix& source = *job.source;
  const PanelLayout layout = panel_layout(format, source.cols);
  const int64_t words = f.bytes / 4;
  int64_t bad = kNoRow;
  for (int64_t done = 0; done < job.count;) {
    const int64_t column = job.column + done;
    const int64_t count = std::min(kStrip - column % kStrip, job.count - done);
    const std::byte* from = source.data + (job.first + done) * source.row_stride;
    for (int64_t b = 0; b < layout.blocks; ++b, from += f.bytes) {
      const BlockPlace place = block_place(layout, b, column);
      for (int64_t i = 0; i < count; ++i) {
        const std::byte* const block = from + i * source.row_stride;
        if (!is_finite(format, block)) bad = std::min(bad, job.first + done + i);
        if (f.half_at != kNoHalf) std::memcpy(job.panel + place.half + i * 2, block + f.half_at, 2);
      }
      for (int64_t w = 0; w < words; ++w) {
        const int64_t offset = f.half_at == kNoHalf || 4 * w < f.half_at ? 4 * w : 4 * w + 2;
        std::byte* const to = job.panel + place.words + w * kStrip * 4;
        for (int64_t i = 0; i < count; ++i)
          std::memcpy(to + i * 4, from + i * source.row_stride + offset, 4);
      }
    }
    done += count;
  }
  return bad;
}

}  // namespace

BlockMatrix columns(BlockMatrix source, Format format, int64_t first, int64_t width) {
  source.data += block_row_bytes(format, first);
  source.cols = width;
  return source;
}

void pack_panels(Format format, std::span<const PanelJob<BlockMatrix>> jobs) {
  ThreadPool::Session session(ThreadPool::instance());
  std::atomic<int64_t> bad{kNoRow};  // job and row, in order
  session.parallel_for(static_cast<int64_t>(jobs.size()), [&](int64_t item, int) {
    const PanelJob<BlockMatrix>& job = jobs[static_cast<std::size_t>(item)];
    const int64_t row = pack(format, job);
    if (row == kNoRow) return;
    const int64_t place = item * kPanel + (row - job.first);
    int64_t seen = bad.load(std::memory_order_relaxed);
    while (place < seen && !bad.compare_exchange_weak(seen, place, std::memory_order_relaxed)) {
    }
  });
  if (bad == kNoRow) return;
  const PanelJob<BlockMatrix>& job = jobs[static_cast<std::size_t>(bad / kPanel)];
  throw NotFiniteError(std::string(job.source->name) + ": row " +
                       std::to_string(job.first + bad % kPanel) +
                       " holds a scale that is a NaN or an infinity; weights must be finite");
}

void unpack_blocks(Format format, int64_t k, const std::byte* panel, int64_t column, int64_t count,
                   float* target, int64_t target_stride) {
  constexpr int64_t kSteps = 64;
  alignas(64) std::array<float, kSteps * kPanel> steps;
  const KernelTable& table = selected();
  for (int64_t first = 0; first < k; first += kSteps) {
    const int64_t some = std::min(kSteps, k - first);
    table.vectors.unpack_blocks(
        {panel, format, k, first, some, reinterpret_cast<std::byte*>(steps.data())});
    for (int64_t i = 0; i < count; ++i)
      for (int64_t j = 0; j < some; ++j)
        target[i * target_stride + first + j] =
            steps[static_cast<std::size_t>(j * kPanel + column + i)];
  }
}

}  // namespace inlay::kernels
