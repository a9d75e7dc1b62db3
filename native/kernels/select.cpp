#include <array>
#include <atomic>
#include <mutex>
#include <utility>

#include "../core/errors.h"
#include "cpu_features.h"
#include "isa.h"

namespace inlay::kernels {

namespace scalar {
extern const KernelTable kTable;
}
#if defined(INLAY_X86_64)
namespace avx2 {
extern const KernelTable kTable;
}
namespace avx2_vnni {
extern const KernelTable kTable;
}
namespace avx512 {
extern const KernelTable kTable;
}
namespace avx512_vnni {
extern const KernelTable kTable;
}
namespace avx512_bf16 {
extern const KernelTable kTable;
}
#endif

namespace {

struct Variant {
  const KernelTable* table;
  bool (*runs_on)(const CpuFeatures&);
  const char* needs;
};

#if defined(INLAY_X86_64)
bool has_avx2(const CpuFeatures& f) { return f.avx2 && f.fma; }
bool has_avx512(const CpuFeatures& f) {
  return has_avx2(f) && f.avx512f && f.avx512bw && f.avx512dq && f.avx512vl;
}
#endif

// Slowest first.
constexpr auto kVariants = std::to_array<Variant>({
    {&scalar::kTable, [](const CpuFeatures&) { return true; }, "nothing"},
#if defined(INLAY_X86_64)
    {&avx2::kTable, has_avx2, "avx2 and fma"},
    {&avx2_vnni::kTable, [](const CpuFeatures& f) { return has_avx2(f) && f.avx_vnni; },
     "avx2, fma and avx_vnni"},
    {&avx512::kTable, has_avx512, "avx512f, avx512bw, avx512dq and avx512vl"},
    {&avx512_vnni::kTable, [](const CpuFeatures& f) { return has_avx512(f) && f.avx512_vnni; },
     "avx512f, avx512bw, avx512dq, avx512vl and avx512_vnni"},
    {&avx512_bf16::kTable,
     [](const CpuFeatures& f) { return has_avx512(f) && f.avx512_vnni && f.avx512_bf16; },
     "avx512f, avx512bw, avx512dq, avx512vl, avx512_vnni and avx512_bf16"},
#endif
});

const CpuFeatures& features() {
  static const CpuFeatures found = detect_cpu_features();
  return found;
}

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

struct Selection {
  std::atomic<const KernelTable*> table{nullptr};
  std::mutex mutex;
  std::string requested;
};

Selection& selection() {
  static Selection instance;
  return instance;
}

const KernelTable* choose(const std::string& requested) {
  const KernelTable* best = nullptr;
  for (const Variant& variant : kVariants) {
    const bool runs = variant.runs_on(features());
    if (!requested.empty() && requested == variant.table->isa) {
      if (runs) return variant.table;
      throw ArgumentError("INLAY_ISA: '" + requested + "' needs " + variant.needs +
                          ", which this processor or operating system does not offer; available "
                          "here: " +
                          joined(available_isas()));
    }
    if (runs) best = variant.table;
  }
  if (requested.empty()) return best;
  throw ArgumentError("INLAY_ISA: '" + requested + "' is not a kernel variant of this build (" +
                      joined(compiled_isas()) + ")");
}

}  // namespace

std::vector<std::string> available_isas() {
  std::vector<std::string> names;
  for (const Variant& variant : kVariants)
    if (variant.runs_on(features())) names.emplace_back(variant.table->isa);
  return names;
}

std::vector<std::string> compiled_isas() {
  std::vector<std::string> names;
  for (const Variant& variant : kVariants) names.emplace_back(variant.table->isa);
  return names;
}

const KernelTable& selected() {
  Selection& state = selection();
  const KernelTable* table = state.table.load(std::memory_order_acquire);
  if (table == nullptr) {
    const std::lock_guard lock(state.mutex);
    table = choose(state.requested);
    state.table.store(table, std::memory_order_release);
  }
  return *table;
}

void request_isa(std::string_view name) {
  Selection& state = selection();
  const std::lock_guard lock(state.mutex);
  state.requested = name;
  state.table.store(nullptr, std::memory_order_release);
}

std::vector<std::string> cpu_features() {
  const CpuFeatures& f = features();
  const std::array<std::pair<bool, const char*>, 13> all = {{
      {f.avx2, "avx2"},
      {f.fma, "fma"},
      {f.f16c, "f16c"},
      {f.avx_vnni, "avx_vnni"},
      {f.avx512f, "avx512f"},
      {f.avx512bw, "avx512bw"},
      {f.avx512dq, "avx512dq"},
      {f.avx512vl, "avx512vl"},
      {f.avx512_vnni, "avx512_vnni"},
      {f.avx512_bf16, "avx512_bf16"},
      {f.amx_tile, "amx_tile"},
      {f.amx_int8, "amx_int8"},
      {f.amx_bf16, "amx_bf16"},
  }};
  std::vector<std::string> names;
  for (const auto& [present, name] : all)
    if (present) names.emplace_back(name);
  return names;
}

}  // namespace inlay::kernels
