#include "weights.h"

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <string>

#include "../core/errors.h"
#include "thread_pool.h"

namespace inlay::kernels {
namespace {

// More than the address space of a process.
constexpr int64_t kMaxBytes = int64_t{1} << 47;

// The product of factors that are not negative; `what` names what has so many bytes.
int64_t checked_bytes(const std::string& what, std::initializer_list<int64_t> factors) {
  int64_t bytes = 1;
  for (const int64_t factor : factors)
    if (__builtin_mul_overflow(bytes, factor, &bytes) || bytes > kMaxBytes)
      throw ArgumentError(what + " take more than the 2^47 bytes that a process can address");
  return bytes;
}

int64_t linear_bytes(int64_t out_features, int64_t in_features, Format format) {
  return checked_bytes(
      "out_features: " + std::to_string(out_features) + " rows of " + std::to_string(in_features),
      {panel_count(out_features), panel_layout(format, in_features).panel_bytes});
}

// Of all experts' panels, `panels` of `panel_bytes` each.
int64_t expert_bytes(int64_t num_experts, int64_t panels, int64_t panel_bytes) {
  return checked_bytes("num_experts: " + std::to_string(num_experts) + " experts of these sizes",
                       {num_experts, panels, panel_bytes});
}

void require_size(const char* what, const WeightMemory& memory, int64_t expected) {
  if (memory.size() != expected)
    throw ArgumentError(std::string(what) + ": holds " + std::to_string(memory.size()) +
                        " bytes, but its shape and format need " + std::to_string(expected));
}

std::byte* writable(const WeightMemory& memory) {
  std::byte* data = memory.mutable_data();
  if (data == nullptr)
    throw ArgumentError("weights: they are mapped from a file and cannot be changed");
  return data;
}

// Source rows [first, first + source.rows) of a matrix whose panels begin at `panels`.
template <typename Source>
void append_jobs(const Source& source, int64_t first, std::byte* panels, int64_t panel_bytes,
                 std::vector<PanelJob<Source>>& jobs) {
  const int64_t end = first + source.rows;
  for (int64_t row = first; row < end;) {
    const int64_t count = std::min(kPanel - row % kPanel, end - row);
    jobs.push_back(
        {&source, row - first, count, panels + row / kPanel * panel_bytes, row % kPanel});
    row += count;
  }
}

template <typename Source>
void pack_rows_of(const Source& source, int64_t first, Format format, std::byte* panels,
                  int64_t panel_bytes) {
  std::vector<PanelJob<Source>> jobs;
  append_jobs(source, first, panels, panel_bytes, jobs);
  pack_panels(format, std::span<const PanelJob<Source>>(jobs));
}

ExpertWeights::Shard make_shard(int64_t hidden, int64_t first, int64_t width,
                                ExpertFormats formats) {
  ExpertWeights::Shard shard{};
  shard.first = first;
  shard.width = width;
  shard.gate_up = panel_layout(formats.gate_up, hidden);
  shard.down = panel_layout(formats.down, width);
  shard.gate_up_panels = (width + ExpertWeights::kHalf - 1) / ExpertWeights::kHalf;
  shard.down_panels = panel_count(hidden);
  return shard;
}

int64_t bias_bytes(int64_t num_experts, int64_t hidden, int64_t intermediate) {
  return expert_bytes(num_experts, 2 * intermediate + hidden, sizeof(float));
}

}  // namespace

WeightMemory::WeightMemory(int64_t size_bytes, int node)
    : buffer_(std::make_shared<AlignedBuffer>(static_cast<std::size_t>(size_bytes), node)),
      data_(buffer_->data()),
      size_(size_bytes) {}

WeightMemory::WeightMemory(const std::byte* data, int64_t size_bytes,
                           std::shared_ptr<const void> owner)
    : owner_(std::move(owner)), data_(data), size_(size_bytes) {}

LinearWeight::LinearWeight(int64_t out_features, int64_t in_features, Format format)
    : out_features_(out_features),
      in_features_(in_features),
      format_(format),
      layout_(panel_layout(format, in_features)),
      memory_(linear_bytes(out_features, in_features, format), WeightMemory::kAnyNode) {
  const ThreadPool::Session session(ThreadPool::instance());
  for (int node = 0; node < session.num_nodes(); ++node)
    memory_.prefer_node(session.first_item(node, panels()) * layout_.panel_bytes,
                        session.first_item(node + 1, panels()) * layout_.panel_bytes,
                        session.memory_node(node));
}

LinearWeight::LinearWeight(int64_t out_features, int64_t in_features, Format format,
                           WeightMemory memory)
    : out_features_(out_features),
      in_features_(in_features),
      format_(format),
      layout_(panel_layout(format, in_features)),
      memory_(std::move(memory)) {
  require_size("panels", memory_, linear_bytes(out_features, in_features, format));
}

void LinearWeight::set_rows(int64_t first, const SourceMatrix& source) {
  pack_rows_of(source, first, format_, writable(memory_), layout_.panel_bytes);
}

void LinearWeight::set_rows(int64_t first, const QuantizedMatrix& source) {
  pack_rows_of(source, first, format_, writable(memory_), layout_.panel_bytes);
}

void LinearWeight::set_rows(int64_t first, const BlockMatrix& source) {
  pack_rows_of(source, first, format_, writable(memory_), layout_.panel_bytes);
}

void LinearWeight::dequantize(float* target_NK) const {
  ThreadPool::Session session(ThreadPool::instance());
  session.parallel_for(panels(), [&](int64_t item, int) {
    const int64_t first = item * kPanel;
    unpack_panel(format_, in_features_, panel(item), 0, std::min(kPanel, out_features_ - first),
                 target_NK + first * in_features_, in_features_);
  });
}

ExpertWeights::ExpertWeights(int64_t num_experts, int64_t hidden, int64_t intermediate,
                             ExpertFormats formats, bool has_bias)
    : num_experts_(num_experts), hidden_(hidden), intermediate_(intermediate), formats_(formats) {
  const ThreadPool::Session session(ThreadPool::instance());
  // Shards begin where both a gate/up panel and a group of down begin.
  const int64_t step = std::max<int64_t>(kHalf, info(formats.down).k_multiple);
  const int64_t steps = (intermediate + step - 1) / step;
  const int64_t num_shards = std::min<int64_t>(session.num_nodes(), steps);
  for (int64_t i = 0; i < num_shards; ++i) {
    const int64_t first = steps * i / num_shards * step;
    const int64_t end = std::min(steps * (i + 1) / num_shards * step, intermediate);
    const int node = session.memory_node(static_cast<int>(i));
    Shard shard = make_shard(hidden, first, end - first, formats);
    shard.gate_up_memory = WeightMemory(
        expert_bytes(num_experts, shard.gate_up_panels, shard.gate_up.panel_bytes), node);
    shard.down_memory =
        WeightMemory(expert_bytes(num_experts, shard.down_panels, shard.down.panel_bytes), node);
    shards_.push_back(std::move(shard));
  }
  if (has_bias)
    biases_ = WeightMemory(bias_bytes(num_experts, hidden, intermediate), WeightMemory::kAnyNode);
}

ExpertWeights::ExpertWeights(int64_t num_experts, int64_t hidden, int64_t intermediate,
                             ExpertFormats formats, WeightMemory gate_up, WeightMemory down,
                             WeightMemory biases)
    : num_experts_(num_experts),
      hidden_(hidden),
      intermediate_(intermediate),
      formats_(formats),
      biases_(std::move(biases)) {
  Shard shard = make_shard(hidden, 0, intermediate, formats);
  shard.gate_up_memory = std::move(gate_up);
  shard.down_memory = std::move(down);
  require_size("gate_up", shard.gate_up_memory,
               expert_bytes(num_experts, shard.gate_up_panels, shard.gate_up.panel_bytes));
  require_size("down", shard.down_memory,
               expert_bytes(num_experts, shard.down_panels, shard.down.panel_bytes));
  shards_.push_back(std::move(shard));
  if (has_bias()) require_size("biases", biases_, bias_bytes(num_experts, hidden, intermediate));
}

template <typename Source>
void ExpertWeights::set_down(int64_t expert, const Source& down_MF) {
  std::vector<Source> parts;
  parts.reserve(shards_.size());
  std::vector<PanelJob<Source>> jobs;
  for (const Shard& shard : shards_) {
    parts.push_back(columns(down_MF, formats_.down, shard.first, shard.width));
    append_jobs(parts.back(), 0,
                writable(shard.down_memory) + expert * shard.down_panels * shard.down.panel_bytes,
                shard.down.panel_bytes, jobs);
  }
  pack_panels(formats_.down, std::span<const PanelJob<Source>>(jobs));
}

template <typename Source>
void ExpertWeights::set_gate_up(int64_t expert, const Source& gate_FM, const Source& up_FM) {
  std::vector<PanelJob<Source>> jobs;
  for (const Shard& shard : shards_) {
    std::byte* panel =
        writable(shard.gate_up_memory) + expert * shard.gate_up_panels * shard.gate_up.panel_bytes;
    for (int64_t column = 0; column < shard.width; column += kHalf) {
      const int64_t count = std::min(kHalf, shard.width - column);
      jobs.push_back({&gate_FM, shard.first + column, count, panel, 0});
      jobs.push_back({&up_FM, shard.first + column, count, panel, kHalf});
      panel += shard.gate_up.panel_bytes;
    }
  }
  pack_panels(formats_.gate_up, std::span<const PanelJob<Source>>(jobs));
}

void ExpertWeights::set(int64_t expert, const QuantizedMatrix& gate_FM,
                        const QuantizedMatrix& up_FM, const QuantizedMatrix& down_MF) {
  set_gate_up(expert, gate_FM, up_FM);
  set_down(expert, down_MF);
}

void ExpertWeights::set(int64_t expert, const BlockMatrix& gate_FM, const BlockMatrix& up_FM,
                        const BlockMatrix& down_MF) {
  set_gate_up(expert, gate_FM, up_FM);
  set_down(expert, down_MF);
}

void ExpertWeights::set(int64_t expert, const SourceMatrix& gate_FM, const SourceMatrix& up_FM,
                        const SourceMatrix& down_MF) {
  set_gate_up(expert, gate_FM, up_FM);
  if (info(formats_.down).group != kWholeRow || shards_.size() == 1) {
    set_down(expert, down_MF);
    return;
  }
  std::vector<std::byte> q(static_cast<std::size_t>(hidden_ * intermediate_));
  std::vector<std::byte> scales(static_cast<std::size_t>(hidden_ * 4));
  quantize(down_MF, formats_.down, q.data(), scales.data());
  set_down(expert, QuantizedMatrix{down_MF.name, down_MF.name, q.data(), scales.data(), hidden_,
                                   intermediate_, intermediate_, 4});
}

void ExpertWeights::set_bias(int64_t expert, const float* gate_F, const float* up_F,
                             const float* down_M) {
  if (!has_bias()) return;
  float* biases =
      reinterpret_cast<float*>(writable(biases_)) + expert * (2 * intermediate_ + hidden_);
  if (gate_F != nullptr) std::copy_n(gate_F, intermediate_, biases);
  if (up_F != nullptr) std::copy_n(up_F, intermediate_, biases + intermediate_);
  if (down_M != nullptr) std::copy_n(down_M, hidden_, biases + 2 * intermediate_);
}

bool ExpertWeights::lies_as(const ExpertWeights& other) const {
  const auto same = [](const Shard& a, const Shard& b) {
    return a.first == b.first && a.width == b.width;
  };
  return hidden_ == other.hidden_ && intermediate_ == other.intermediate_ &&
         formats_ == other.formats_ && has_bias() == other.has_bias() &&
         std::ranges::equal(shards_, other.shards_, same);
}

void ExpertWeights::copy(int64_t expert, const ExpertWeights& from, int64_t from_expert) {
  const auto take = [&](const WeightMemory& to, const WeightMemory& source, int64_t bytes) {
    std::memcpy(writable(to) + expert * bytes, source.data() + from_expert * bytes,
                static_cast<std::size_t>(bytes));
  };
  for (std::size_t i = 0; i < shards_.size(); ++i) {
    const Shard &to = shards_[i], &source = from.shards_[i];
    take(to.gate_up_memory, source.gate_up_memory, to.gate_up_panels * to.gate_up.panel_bytes);
    take(to.down_memory, source.down_memory, to.down_panels * to.down.panel_bytes);
  }
  if (has_bias()) take(biases_, from.biases_, (2 * intermediate_ + hidden_) * 4);
}

int64_t ExpertWeights::gate_up_bytes() const {
  const Shard whole = make_shard(hidden_, 0, intermediate_, formats_);
  return whole.gate_up_panels * whole.gate_up.panel_bytes;
}

int64_t ExpertWeights::down_bytes() const {
  const Shard whole = make_shard(hidden_, 0, intermediate_, formats_);
  return whole.down_panels * whole.down.panel_bytes;
}

// A shard's part of a panel with blocks, whose columns are longer: halves, and each strip's words.
static void copy_blocks(const std::byte* from, const PanelLayout& part, const PanelLayout& whole,
                        int64_t first_block, std::byte* to) {
  const int64_t words_bytes = info(part.format).block.bytes / 4 * kStrip * 4;
  std::memcpy(to + block_place(whole, first_block, 0).half, from,
              static_cast<std::size_t>(part.halves_bytes));
  for (int64_t column = 0; column < kPanel; column += kStrip)
    std::memcpy(to + block_place(whole, first_block, column).words,
                from + block_place(part, 0, column).words,
                static_cast<std::size_t>(part.blocks * words_bytes));
}

void ExpertWeights::copy_panels(int64_t expert, std::byte* gate_up, std::byte* down) const {
  const PanelLayout whole = panel_layout(formats_.down, intermediate_);
  std::byte* down_panel = down;
  for (const Shard& shard : shards_) {
    const int64_t bytes = shard.gate_up_panels * shard.gate_up.panel_bytes;
    std::memcpy(gate_up, shard.gate_up_panel(expert, 0), static_cast<std::size_t>(bytes));
    gate_up += bytes;
    if (has_blocks(formats_.down)) {
      const int64_t first_block = shard.first / info(formats_.down).block.k;
      for (int64_t i = 0; i < shard.down_panels; ++i)
        copy_blocks(shard.down_panel(expert, i), shard.down, whole, first_block,
                    down + i * whole.panel_bytes);
      continue;
    }
    // A panel's groups, or its steps of K when there are none, follow those of the shard before. A
    // single group for all of K has the same scales in every shard.
    const bool first = shard.first == 0;
    const int64_t skipped =
        info(formats_.down).group == kWholeRow && !first ? whole.scale_bytes : 0;
    const int64_t part = shard.down.panel_bytes - skipped;
    for (int64_t i = 0; i < shard.down_panels; ++i)
      std::memcpy(down_panel + i * whole.panel_bytes, shard.down_panel(expert, i) + skipped,
                  static_cast<std::size_t>(part));
    down_panel += part;
  }
}

void ExpertWeights::dequantize(int64_t expert, float* gate_FM, float* up_FM, float* down_MF) const {
  ThreadPool::Session session(ThreadPool::instance());
  for (const Shard& shard : shards_) {
    session.parallel_for(shard.gate_up_panels, [&](int64_t item, int) {
      const std::byte* panel = shard.gate_up_panel(expert, item);
      const int64_t count = std::min(kHalf, shard.width - item * kHalf);
      const int64_t offset = (shard.first + item * kHalf) * hidden_;
      unpack_panel(formats_.gate_up, hidden_, panel, 0, count, gate_FM + offset, hidden_);
      unpack_panel(formats_.gate_up, hidden_, panel, kHalf, count, up_FM + offset, hidden_);
    });
    session.parallel_for(shard.down_panels, [&](int64_t item, int) {
      const int64_t first = item * kPanel;
      unpack_panel(formats_.down, shard.width, shard.down_panel(expert, item), 0,
                   std::min(kPanel, hidden_ - first), down_MF + first * intermediate_ + shard.first,
                   intermediate_);
    });
  }
}

int64_t ExpertWeights::size_bytes() const {
  int64_t total = biases_.size();
  for (const Shard& shard : shards_)
    total += shard.gate_up_memory.size() + shard.down_memory.size();
  return total;
}

}  // namespace inlay::kernels
