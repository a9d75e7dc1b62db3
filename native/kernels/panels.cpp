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
#include "small_floats.h"
#include "thread_pool.h"

namespace inlay::kernels {
namespace {

// Columns packed at a time: their words fill whole cache lines of the panel.
constexpr int64_t kColumns = 16;
constexpr int64_t kNone = std::numeric_limits<int64_t>::max();
constexpr float kLargestNibble = 15;
constexpr uint32_t kNanWord = 0x7fc00000u;

// Bits of the smallest magnitude that is not finite in a float format: of infinity, and of what
// rounds to infinity in bf16 and fp16.
constexpr uint32_t kInfinity = 0x7f800000u;
constexpr uint32_t kInfinityInBf16 = 0x7f7f8000u;
constexpr uint32_t kInfinityInFp16 = 0x477ff000u;

bool all_below(const float* x, int64_t count, uint32_t magnitude_bits) {
  uint32_t largest = 0;
  for (int64_t i = 0; i < count; ++i)
    largest = std::max(largest, std::bit_cast<uint32_t>(x[i]) & 0x7fffffffu);
  return largest < magnitude_bits;
}

// Every weight that the format can say with this scale is finite.
bool scale_fits(Format format, uint32_t scale) {
  if (has_zeros(format)) {
    const float largest =
        std::max(std::abs(zero_of(scale)), std::abs(kLargestNibble - zero_of(scale)));
    return std::isfinite(largest * value_of_scale(info(format).scale, scale));
  }
  return std::isfinite(largest_weight(format) * value_of_scale(info(format).scale, scale));
}

bool scales_fit(Format format, const uint32_t* scales, int64_t groups) {
  return std::all_of(scales, scales + groups,
                     [format](uint32_t scale) { return scale_fits(format, scale); });
}

int64_t words_per_group(Format format, const PanelLayout& layout) {
  return layout.group_k * info(format).bits / 32;
}

// Scratch of one thread: a source row as fp32, its integers or codes, and kColumns rows of words
// and scales. Rows of words lie a cache line further apart than they are long, or 16 of them would
// meet in the same few cache sets when K is a power of two.
struct Scratch {
  const KernelTable* table;
  Format format;
  PanelLayout layout;
  int64_t row_words;
  int64_t word_stride;
  float* row;
  int8_t* q;
  uint32_t* words;   // [kColumns][word_stride]
  uint32_t* scales;  // [kColumns][groups]

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
        scales(words + kColumns * word_stride) {}
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
  const uint32_t bias = static_cast<uint32_t>(info(scratch.format).bias) * 0x01010101u;
  if (info(scratch.format).bits == 8) {
    for (int64_t i = 0; i < scratch.row_words; ++i) words[i] = load_word(scratch.q + 4 * i) ^ bias;
  } else {
    const auto nibbles = [bias](uint32_t word) { return (word ^ bias) & 0x0f0f0f0fu; };
    for (int64_t i = 0; i < scratch.row_words; ++i)
      words[i] = nibbles(load_word(scratch.q + 8 * i)) | nibbles(load_word(scratch.q + 8 * i + 4))
                                                             << 4;
  }
}

// Codes of small floats to words; those that the kernels take as 0 become that.
void words_of_codes(const Scratch& scratch, const uint32_t* scales, uint32_t* words) {
  const uint8_t* codes = reinterpret_cast<const uint8_t*>(scratch.q);
  if (info(scratch.format).bits == 8) {
    for (int64_t i = 0; i < scratch.row_words; ++i, codes += 4)
      words[i] =
          codes[0] | uint32_t{codes[2]} << 8 | uint32_t{codes[1]} << 16 | uint32_t{codes[3]} << 24;
    return;
  }
  for (int64_t i = 0; i < scratch.row_words; ++i, codes += 8) {
    const uint32_t scale = scales[8 * i / scratch.layout.group_k];
    words[i] = 0;
    for (uint32_t j = 0; j < 8; ++j) {
      const uint32_t code = vanishes(codes[j], scale) ? codes[j] & kE2m1.sign : codes[j];
      words[i] |= code << (j / 2 * 4 + j % 2 * 16);
    }
  }
}

// False when the row is not finite, or will not be in the format.
bool words_of_row(const SourceMatrix& source, int64_t row, const Scratch& scratch, uint32_t* words,
                  uint32_t* scales) {
  const float* x = float_row(source, row, scratch.row);
  if (info(scratch.format).scale != Scale::kNone) {
    scratch.table->vectors.quantize_row({x, source.cols, scratch.format, scratch.q, scales});
    if (has_small_floats(scratch.format))
      words_of_codes(scratch, scales, words);
    else
      words_of_integers(scratch, words);
    return scales_fit(scratch.format, scales, scratch.layout.groups);
  }
  if (scratch.format == Format::kF32) {
    std::memcpy(words, x, static_cast<std::size_t>(source.cols) * sizeof(float));
    return all_below(x, source.cols, kInfinity);
  }
  const bool half = scratch.format == Format::kF16;
  const auto bits = [half](float value) -> uint32_t {
    return half ? to_fp16(value) : to_bf16(value);
  };
  std::fill_n(words, scratch.row_words, 0u);
  for (int64_t i = 0; i + 1 < source.cols; i += 2) words[i / 2] = bits(x[i]) | bits(x[i + 1]) << 16;
  if (source.cols % 2 == 1) words[source.cols / 2] = bits(x[source.cols - 1]);
  return all_below(x, source.cols, half ? kInfinityInFp16 : kInfinityInBf16);
}

// A scale of a matrix that is quantised already, as the bits that the format stores.
uint32_t stored_scale(const QuantizedMatrix& source, Format format, int64_t row, int64_t group) {
  const std::byte* at =
      source.scales + row * source.scale_stride + group * quantized_scale_bytes(format);
  if (info(format).scale == Scale::kE8m0) return static_cast<uint32_t>(*at);
  if (has_zeros(format)) {
    float scale, zero;
    std::memcpy(&scale, at, sizeof scale);
    std::memcpy(&zero, at + sizeof scale, sizeof zero);
    const float units = std::nearbyint(zero / kZeroUnit);
    if (!(std::abs(units) <= std::numeric_limits<int16_t>::max())) return kNanWord;
    return uint32_t{to_bf16(scale)} << 16 | static_cast<uint16_t>(static_cast<int16_t>(units));
  }
  uint32_t bits;
  std::memcpy(&bits, at, sizeof bits);
  return info(format).scale == Scale::kF32 ? bits : to_bf16(std::bit_cast<float>(bits));
}

bool is_nan_of_e4m3(int8_t code) { return (code & 0x7f) == 0x7f; }

// False when a scale does not fit the format, or an integer or a code does not.
bool words_of_row(const QuantizedMatrix& source, int64_t row, const Scratch& scratch,
                  uint32_t* words, uint32_t* scales) {
  const FormatInfo& f = info(scratch.format);
  const int8_t* q = reinterpret_cast<const int8_t*>(source.q) + row * source.row_stride;
  for (int64_t group = 0; group < scratch.layout.groups; ++group)
    scales[group] = stored_scale(source, scratch.format, row, group);
  const bool scales_are_good = scales_fit(scratch.format, scales, scratch.layout.groups);
  std::fill(scratch.q + source.cols, scratch.q + scratch.layout.k, int8_t{0});
  if (f.scale == Scale::kE8m0) {
    for (int64_t i = 0; i < source.cols; ++i)
      scratch.q[i] = static_cast<int8_t>(q[i / 2] >> (i % 2 * 4) & 15);
    words_of_codes(scratch, scales, words);
    return scales_are_good;
  }
  std::memcpy(scratch.q, q, static_cast<std::size_t>(source.cols));
  if (f.scale == Scale::kF32) {
    words_of_codes(scratch, scales, words);
    return scales_are_good && std::none_of(q, q + source.cols, is_nan_of_e4m3);
  }
  words_of_integers(scratch, words);
  const auto in_range = [&f](int8_t x) { return x >= -f.bias && x < (1 << f.bits) - f.bias; };
  return scales_are_good && (f.bits == 8 || std::all_of(q, q + source.cols, in_range));
}

// Rows of words and scales to columns [column, column + count) of a panel.
void transpose_into(const Scratch& scratch, std::byte* panel, int64_t column, int64_t count) {
  const int64_t steps = words_per_group(scratch.format, scratch.layout);
  for (int64_t group = 0; group < scratch.layout.groups; ++group) {
    std::byte* target = panel + group * scratch.layout.group_bytes;
    const int64_t bytes = bytes_of(info(scratch.format).scale);
    for (int64_t i = 0; bytes > 0 && i < count; ++i)  // little-endian: the low bytes come first
      std::memcpy(target + (column + i) * bytes, scratch.scales + i * scratch.layout.groups + group,
                  static_cast<std::size_t>(bytes));
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

[[noreturn]] void refuse(Format, const SourceMatrix& source, int64_t row) {
  throw NotFiniteError(std::string(source.name) + ": row " + std::to_string(row) +
                       " holds a NaN or an infinity, or a value that is one in this format; "
                       "weights must be finite");
}

[[noreturn]] void refuse(Format format, const QuantizedMatrix& source, int64_t row) {
  if (has_small_floats(format)) {
    const int64_t groups = panel_layout(format, source.cols).groups;
    for (int64_t group = 0; group < groups; ++group)
      if (!scale_fits(format, stored_scale(source, format, row, group)))
        throw NotFiniteError(std::string(source.scales_name) + ": row " + std::to_string(row) +
                             ", group " + std::to_string(group) +
                             " is a NaN, an infinity, or a scale whose weights are not finite");
    const int8_t* q = reinterpret_cast<const int8_t*>(source.q) + row * source.row_stride;
    throw NotFiniteError(std::string(source.name) + ": row " + std::to_string(row) + ", column " +
                         std::to_string(std::find_if(q, q + source.cols, is_nan_of_e4m3) - q) +
                         " is a NaN; weights must be finite");
  }
  throw ArgumentError(std::string(source.name) + ": row " + std::to_string(row) +
                      " holds a scale that is not finite, a scale whose weights are not, " +
                      (has_zeros(format) ? "a zero point beyond 127.99, " : "") +
                      "or an integer outside the format's range");
}

template <typename Source>
void pack_all(Format format, std::span<const PanelJob<Source>> jobs) {
  if (has_blocks(format))
    throw ArgumentError(std::string("format: nothing becomes '") + info(format).name +
                        "', whose blocks only files hold");
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
  refuse(format, *job.source, job.first + bad % kPanel);
}

}  // namespace

SourceMatrix columns(SourceMatrix source, Format, int64_t first, int64_t width) {
  const int64_t bytes = source.dtype == DType::kF32 ? 4 : 2;
  source.data = static_cast<const std::byte*>(source.data) + first * bytes;
  source.cols = width;
  return source;
}

QuantizedMatrix columns(QuantizedMatrix source, Format format, int64_t first, int64_t width) {
  source.q += quantized_row_bytes(format, first);
  if (info(format).group > 0)
    source.scales += first / info(format).group * quantized_scale_bytes(format);
  source.cols = width;
  return source;
}

void pack_panels(Format format, std::span<const PanelJob<SourceMatrix>> jobs) {
  pack_all(format, jobs);
}

void pack_panels(Format format, std::span<const PanelJob<QuantizedMatrix>> jobs) {
  pack_all(format, jobs);
}

namespace {

// Words of a column of a group, kPanel apart.
void unpack_codes(Format format, const uint32_t* words, int64_t count, float scale, float* out) {
  const int64_t bits = info(format).bits, per_word = 32 / bits;
  for (int64_t j = 0; j < count; ++j) {
    const int64_t step = j % per_word;
    const uint32_t word = words[j / per_word * kPanel] >> (step / 2 * bits + step % 2 * 16);
    out[j] = value_of_code(small_float(format), word & ((1u << bits) - 1u)) * scale;
  }
}

}  // namespace

void unpack_panel(Format format, int64_t k, const std::byte* panel, int64_t column, int64_t count,
                  float* target, int64_t target_stride) {
  if (has_blocks(format))
    return unpack_blocks(format, k, panel, column, count, target, target_stride);
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
        for (int64_t j = 0; j < size; ++j) {
          const uint16_t bits = static_cast<uint16_t>(word[j / 2 * kPanel] >> (j % 2 * 16));
          out[j] = format == Format::kF16 ? from_fp16(bits) : from_bf16(bits);
        }
      } else {
        uint32_t bits = 0;
        const int64_t scale_bytes = bytes_of(f.scale);
        std::memcpy(&bits, source + (column + i) * scale_bytes,
                    static_cast<std::size_t>(scale_bytes));
        const float scale = value_of_scale(f.scale, bits);
        const float zero = has_zeros(format) ? zero_of(bits) : static_cast<float>(f.bias);
        if (has_small_floats(format)) {
          unpack_codes(format, word, size, scale, out);
          continue;
        }
        // Where the integers of a word lie: byte j % 4, and of 4 bits the high half for j >= 4.
        const int64_t per_word = 32 / f.bits;
        const uint32_t mask = (1u << f.bits) - 1u;
        for (int64_t j = 0; j < size; ++j) {
          const int64_t shift = j % 4 * 8 + j % per_word / 4 * 4;
          const uint32_t u = word[j / per_word * kPanel] >> shift & mask;
          out[j] = (static_cast<float>(u) - zero) * scale;
        }
      }
    }
  }
}

void quantize(const SourceMatrix& source, Format format, std::byte* q, std::byte* scales) {
  const Scale scale = info(format).scale;
  const int64_t row_bytes = quantized_row_bytes(format, source.cols);
  const int64_t scale_bytes = quantized_scale_bytes(format);
  const PanelLayout layout = panel_layout(format, source.cols);
  const KernelTable& table = selected();
  ThreadPool::Session session(ThreadPool::instance());
  session.prepare_thread_scratch(Scratch::floats(format, source.cols));
  std::atomic<int64_t> bad{kNone};
  session.parallel_for(source.rows, [&](int64_t row, int thread) {
    const Scratch scratch(table, format, source.cols, session.thread_scratch(thread));
    const float* x = float_row(source, row, scratch.row);
    table.vectors.quantize_row({x, source.cols, format, scratch.q, scratch.scales});
    if (scale == Scale::kE8m0)  // what is behind the last column is 0
      for (int64_t i = 0; i < row_bytes; ++i)
        q[row * row_bytes + i] = static_cast<std::byte>(
            scratch.q[2 * i] | static_cast<uint8_t>(scratch.q[2 * i + 1]) << 4);
    else
      std::memcpy(q + row * row_bytes, scratch.q, static_cast<std::size_t>(row_bytes));
    for (int64_t group = 0; group < layout.groups; ++group) {
      std::byte* const at = scales + (row * layout.groups + group) * scale_bytes;
      const uint32_t word = scratch.scales[group];
      const uint32_t bits = scale == Scale::kBf16          ? word << 16
                            : scale == Scale::kBf16AndZero ? word & 0xffff0000u
                                                           : word;
      std::memcpy(at, &bits, static_cast<std::size_t>(std::min<int64_t>(scale_bytes, 4)));
      const float zero = zero_of(word);
      if (has_zeros(format)) std::memcpy(at + sizeof bits, &zero, sizeof zero);
    }
    if (!scales_fit(format, scratch.scales, layout.groups)) keep_lowest(bad, row);
  });
  if (bad != kNone) refuse(format, source, bad);
}

}  // namespace inlay::kernels
