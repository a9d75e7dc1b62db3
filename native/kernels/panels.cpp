#include "panels.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "../core/errors.h"
#include "isa.h"
#include "thread_pool.h"

namespace inlay::kernels {
namespace {

// Columns packed at a time: their words fill whole cache lines of the panel.
constexpr int64_t kColumns = 16;
constexpr int64_t kNone = std::numeric_limits<int64_t>::max();

// Bits of the smallest magnitude that is not finite in a float format: of infinity, and of what
// rounds to infinity in bf16.
constexpr uint32_t kInfinity = 0x7f800000u;
constexpr uint32_t kInfinityInBf16 = 0x7f7f8000u;

bool all_below(const float* x, int64_t count, uint32_t magnitude_bits) {
  uint32_t largest = 0;
  for (int64_t i = 0; i < count; ++i)
    largest = std::max(largest, std::bit_cast<uint32_t>(x[i]) & 0x7fffffffu);
  return largest < magnitude_bits;
}

// Every weight that integers of the format can say with these scales is finite.
bool scales_fit(Format format, const uint16_t* scales, int64_t groups) {
  const float largest = static_cast<float>(info(format).bias);
  return std::all_of(scales, scales + groups, [largest](uint16_t scale) {
    return std::isfinite(largest * from_bf16(scale));
  });
}

int64_t words_per_group(Format format, const PanelLayout& layout) {
  return layout.group_k * info(format).bits / 32;
}

// Scratch of one thread: a source row as fp32, its integers, and kColumns rows of words and scales.
// Rows of words lie a cache line further apart than they are long, or 16 of them would meet in the
// same few cache sets when K is a power of two.
struct Scratch {
  const KernelTable* table;
  Format format;
  PanelLayout layout;
  int64_t row_words;
  int64_t word_stride;
  float* row;
  int8_t* q;
  uint32_t* words;   // [kColumns][word_stride]
  uint16_t* scales;  // [kColumns][groups]

  static int64_t floats(Format format, int64_t k) {
    const PanelLayout layout = panel_layout(format, k);
    const int64_t row_words = layout.groups * words_per_group(format, layout);
    return layout.k + round_up(layout.k, 4) / 4 + kColumns * (row_words + kColumns + layout.groups);
  }
  Scratch(const KernelTable& kernels, Format which, int64_t k, float* memory)
      : table(&kernels),
        format(which),
        layout(panel_layout(which, k)),
        row_words(layout.groups * words_per_group(which, layout)),
        word_stride(row_words + kColumns),
        row(memory),
        q(reinterpret_cast<int8_t*>(row + layout.k)),
        words(reinterpret_cast<uint32_t*>(row + layout.k + round_up(layout.k, 4) / 4)),
        scales(reinterpret_cast<uint16_t*>(words + kColumns * word_stride)) {}
};

// A source row as fp32, converted into `scratch` when it has to be.
const float* float_row(const SourceMatrix& source, int64_t row, float* scratch) {
  if (source.dtype == DType::kF32)
    return static_cast<const float*>(source.data) + row * source.row_stride;
  const uint16_t* bits = static_cast<const uint16_t*>(source.data) + row * source.row_stride;
  for (int64_t i = 0; i < source.cols; ++i) scratch[i] = from_bf16(bits[i]);
  return scratch;
}

uint32_t load_word(const int8_t* q) {
  uint32_t word;
  std::memcpy(&word, q, sizeof word);
  return word;
}

// Integers to words with the format's bias added.
void words_of_integers(const Scratch& scratch, uint32_t* words) {
  if (info(scratch.format).bits == 8) {
    for (int64_t i = 0; i < scratch.row_words; ++i)
      words[i] = load_word(scratch.q + 4 * i) ^ 0x80808080u;
  } else {
    const auto nibbles = [](uint32_t word) { return (word ^ 0x08080808u) & 0x0f0f0f0fu; };
    for (int64_t i = 0; i < scratch.row_words; ++i)
      words[i] = nibbles(load_word(scratch.q + 8 * i)) | nibbles(load_word(scratch.q + 8 * i + 4))
                                                             << 4;
  }
}

// False when the row is not finite, or will not be in the format.
bool words_of_row(const SourceMatrix& source, int64_t row, const Scratch& scratch, uint32_t* words,
                  uint16_t* scales) {
  const float* x = float_row(source, row, scratch.row);
  if (info(scratch.format).operand == Operand::kI8) {
    scratch.table->quantize_row({x, source.cols, scratch.format, scratch.q, scales});
    words_of_integers(scratch, words);
    return scales_fit(scratch.format, scales, scratch.layout.groups);
  }
  if (scratch.format == Format::kF32) {
    std::memcpy(words, x, static_cast<std::size_t>(source.cols) * sizeof(float));
    return all_below(x, source.cols, kInfinity);
  }
  std::fill_n(words, scratch.row_words, 0u);
  for (int64_t i = 0; i + 1 < source.cols; i += 2)
    words[i / 2] = to_bf16(x[i]) | static_cast<uint32_t>(to_bf16(x[i + 1])) << 16;
  if (source.cols % 2 == 1) words[source.cols / 2] = to_bf16(x[source.cols - 1]);
  return all_below(x, source.cols, kInfinityInBf16);
}

// False when a scale does not fit the format or an integer does not.
bool words_of_row(const QuantizedMatrix& source, int64_t row, const Scratch& scratch,
                  uint32_t* words, uint16_t* scales) {
  const int8_t* q = source.q + row * source.row_stride;
  const float* row_scales = source.scales + row * source.scale_stride;
  for (int64_t group = 0; group < scratch.layout.groups; ++group)
    scales[group] = to_bf16(row_scales[group]);
  bool valid = scales_fit(scratch.format, scales, scratch.layout.groups);
  if (info(scratch.format).bits == 4)
    valid = valid && std::all_of(q, q + source.cols, [](int8_t x) { return x >= -8 && x <= 7; });
  std::memcpy(scratch.q, q, static_cast<std::size_t>(source.cols));
  std::fill(scratch.q + source.cols, scratch.q + scratch.layout.k, int8_t{0});
  words_of_integers(scratch, words);
  return valid;
}

// Rows of words and scales to columns [column, column + count) of a panel.
void transpose_into(const Scratch& scratch, std::byte* panel, int64_t column, int64_t count) {
  const int64_t steps = words_per_group(scratch.format, scratch.layout);
  for (int64_t group = 0; group < scratch.layout.groups; ++group) {
    std::byte* target = panel + group * scratch.layout.group_bytes;
    if (scratch.layout.scale_bytes > 0) {
      uint16_t* scales = reinterpret_cast<uint16_t*>(target) + column;
      for (int64_t i = 0; i < count; ++i)
        scales[i] = scratch.scales[i * scratch.layout.groups + group];
    }
    uint32_t* words = reinterpret_cast<uint32_t*>(target + scratch.layout.scale_bytes) + column;
    const uint32_t* source = scratch.words + group * steps;
    for (int64_t step = 0; step < steps; ++step)
      for (int64_t i = 0; i < count; ++i)
        words[step * kPanel + i] = source[i * scratch.word_stride + step];
  }
}

void keep_lowest(std::atomic<int64_t>& lowest, int64_t value) {
  int64_t seen = lowest.load(std::memory_order_relaxed);
  while (value < seen && !lowest.compare_exchange_weak(seen, value, std::memory_order_relaxed)) {
  }
}

[[noreturn]] void refuse(const SourceMatrix& source, int64_t row) {
  throw NotFiniteError(std::string(source.name) + ": row " + std::to_string(row) +
                       " holds a NaN or an infinity, or a value that is one in this format; "
                       "weights must be finite");
}

[[noreturn]] void refuse(const QuantizedMatrix& source, int64_t row) {
  throw ArgumentError(std::string(source.name) + ": row " + std::to_string(row) +
                      " holds a scale that is not finite, a scale whose weights are not, or an "
                      "integer outside the format's range");
}

template <typename Source>
void pack_all(Format format, std::span<const PanelJob<Source>> jobs) {
  if (jobs.empty()) return;
  int64_t floats = 0;
  for (const PanelJob<Source>& job : jobs)
    floats = std::max(floats, Scratch::floats(format, job.source->cols));
  const KernelTable& table = selected();
  ThreadPool::Session session(ThreadPool::instance());
  session.prepare_thread_scratch(floats);
  std::atomic<int64_t> bad{kNone};  // job and row, in order
  session.parallel_for(static_cast<int64_t>(jobs.size()), [&](int64_t item, int thread) {
    const PanelJob<Source>& job = jobs[static_cast<std::size_t>(item)];
    const Scratch scratch(table, format, job.source->cols, session.thread_scratch(thread));
    for (int64_t done = 0; done < job.count;) {
      const int64_t column = job.column + done;
      const int64_t count = std::min(kColumns - column % kColumns, job.count - done);
      for (int64_t i = 0; i < count; ++i)
        if (!words_of_row(*job.source, job.first + done + i, scratch,
                          scratch.words + i * scratch.word_stride,
                          scratch.scales + i * scratch.layout.groups))
          keep_lowest(bad, item * kPanel + done + i);
      transpose_into(scratch, job.panel, column, count);
      done += count;
    }
  });
  if (bad == kNone) return;
  const PanelJob<Source>& job = jobs[static_cast<std::size_t>(bad / kPanel)];
  refuse(*job.source, job.first + bad % kPanel);
}

}  // namespace

SourceMatrix columns(SourceMatrix source, Format, int64_t first, int64_t width) {
  const int64_t bytes = source.dtype == DType::kF32 ? 4 : 2;
  source.data = static_cast<const std::byte*>(source.data) + first * bytes;
  source.cols = width;
  return source;
}

QuantizedMatrix columns(QuantizedMatrix source, Format format, int64_t first, int64_t width) {
  source.q += first;
  if (info(format).group > 0) source.scales += first / info(format).group;
  source.cols = width;
  return source;
}

void pack_panels(Format format, std::span<const PanelJob<SourceMatrix>> jobs) {
  pack_all(format, jobs);
}

void pack_panels(Format format, std::span<const PanelJob<QuantizedMatrix>> jobs) {
  pack_all(format, jobs);
}

void unpack_panel(Format format, int64_t k, const std::byte* panel, int64_t column, int64_t count,
                  float* target, int64_t target_stride) {
  const FormatInfo& f = info(format);
  const PanelLayout layout = panel_layout(format, k);
  for (int64_t group = 0; group < layout.groups; ++group) {
    const std::byte* source = panel + group * layout.group_bytes;
    const uint32_t* words = reinterpret_cast<const uint32_t*>(source + layout.scale_bytes);
    const int64_t first = group * layout.group_k;
    const int64_t size = std::min(layout.group_k, k - first);
    for (int64_t i = 0; i < count; ++i) {
      float* out = target + i * target_stride + first;
      const uint32_t* word = words + column + i;
      if (f.bits == 32) {
        for (int64_t j = 0; j < size; ++j) out[j] = std::bit_cast<float>(word[j * kPanel]);
      } else if (f.bits == 16) {
        for (int64_t j = 0; j < size; ++j)
          out[j] = from_bf16(static_cast<uint16_t>(word[j / 2 * kPanel] >> (j % 2 * 16)));
      } else {
        const float scale = from_bf16(reinterpret_cast<const uint16_t*>(source)[column + i]);
        // Where the integers of a word lie: byte j % 4, and of 4 bits the high half for j >= 4.
        const int64_t per_word = 32 / f.bits;
        const uint32_t mask = (1u << f.bits) - 1u;
        for (int64_t j = 0; j < size; ++j) {
          const int64_t shift = j % 4 * 8 + j % per_word / 4 * 4;
          const uint32_t u = word[j / per_word * kPanel] >> shift & mask;
          out[j] = static_cast<float>(static_cast<int32_t>(u) - f.bias) * scale;
        }
      }
    }
  }
}

void quantize(const SourceMatrix& source, Format format, int8_t* q, float* scales) {
  const PanelLayout layout = panel_layout(format, source.cols);
  const KernelTable& table = selected();
  ThreadPool::Session session(ThreadPool::instance());
  session.prepare_thread_scratch(Scratch::floats(format, source.cols));
  std::atomic<int64_t> bad{kNone};
  session.parallel_for(source.rows, [&](int64_t row, int thread) {
    const Scratch scratch(table, format, source.cols, session.thread_scratch(thread));
    const float* x = float_row(source, row, scratch.row);
    table.quantize_row({x, source.cols, format, scratch.q, scratch.scales});
    std::memcpy(q + row * source.cols, scratch.q, static_cast<std::size_t>(source.cols));
    for (int64_t group = 0; group < layout.groups; ++group)
      scales[row * layout.groups + group] = from_bf16(scratch.scales[group]);
    if (!scales_fit(format, scratch.scales, layout.groups)) keep_lowest(bad, row);
  });
  if (bad != kNone) refuse(source, bad);
}

}  // namespace inlay::kernels
