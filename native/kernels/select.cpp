#include <pthread.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>
#include <span>
#include <utility>

#include "../core/errors.h"
#include "cpu_features.h"
#include "isa.h"
#include "isa/parts.h"

namespace inlay::kernels {

namespace {

struct Variant {
  KernelTable table;
  std::span<const char* const> needs;                       // names of cpu_features()
  std::string (*refusal)() = [] { return std::string(); };  // of the OS, asked for its permission
};

#if defined(INLAY_X86_64)
constexpr auto kAvx2 = std::to_array<const char*>({"avx2", "fma"});
constexpr auto kAvx2Vnni = std::to_array<const char*>({"avx2", "fma", "avx_vnni"});
#endif
#if defined(INLAY_AVX512)
constexpr auto kAvx512Bf16 = std::to_array<const char*>(
    {"avx2", "fma", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni", "avx512_bf16"});
constexpr std::span kAvx512Vnni = std::span(kAvx512Bf16).first<7>();
constexpr std::span kAvx512 = std::span(kAvx512Bf16).first<6>();
constexpr auto kAmx =
    std::to_array<const char*>({"avx2", "fma", "avx512f", "avx512bw", "avx512dq", "avx512vl",
                                "avx512_vnni", "amx_tile", "amx_int8", "amx_bf16"});
#endif

// Slowest first, so that what is there for tests alone is never the best.
constexpr auto kVariants = std::to_array<Variant>({
    {{"amx_emulated", scalar::kVectors, amx_emulated::kIntegers, amx_emulated::kBf16, kMinTileRows},
     {}},
    {{"scalar", scalar::kVectors, scalar::kIntegers, scalar::kBf16}, {}},
#if defined(INLAY_X86_64)
    {{"avx2", avx2::kVectors, avx2::kIntegers, avx2::kBf16}, kAvx2},
    {{"avx2_vnni", avx2::kVectors, avx2_vnni::kIntegers, avx2::kBf16}, kAvx2Vnni},
#endif
#if defined(INLAY_AVX512)
    {{"avx512", avx512::kVectors, avx512::kIntegers, avx512::kBf16}, kAvx512},
    {{"avx512_vnni", avx512::kVectors, avx512_vnni::kIntegers, avx512::kBf16}, kAvx512Vnni},
    {{"avx512_bf16", avx512::kVectors, avx512_vnni::kIntegers, avx512_bf16::kBf16}, kAvx512Bf16},
    {{"amx", avx512::kVectors, amx::kIntegers, amx::kBf16, kMinTileRows}, kAmx, allow_amx},
#endif
});

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

// Why a variant cannot run here; empty if it can.
std::string problem(const Variant& variant) {
  const std::vector<std::string> present = cpu_features();
  std::vector<std::string> missing;
  for (const char* name : variant.needs)
    if (std::find(present.begin(), present.end(), name) == present.end()) missing.push_back(name);
  if (missing.empty()) return variant.refusal();
  return "this processor or operating system does not offer " + joined(missing);
}

struct Selection {
  std::atomic<const KernelTable*> table{nullptr};
  std::mutex mutex;
  std::string requested;
};

// Made when the library is loaded, as `features` is: a static of a function would leave a child
// that is forked while another thread makes it waiting for ever. Never destroyed, as threads may be
// choosing at exit.
Selection& selection = *new Selection;

// A fork waits for a thread that is choosing: the child would find the mutex locked for ever.
[[maybe_unused]] const int fork_handlers =
    pthread_atfork([] { selection.mutex.lock(); }, [] { selection.mutex.unlock(); },
                   [] { selection.mutex.unlock(); });

const CpuFeatures features = detect_cpu_features();

const KernelTable* choose(const std::string& requested) {
  for (auto variant = kVariants.rbegin(); variant != kVariants.rend(); ++variant) {
    if (!requested.empty() && requested != variant->table.isa) continue;
    const std::string why_not = problem(*variant);
    if (why_not.empty()) return &variant->table;
    if (requested.empty()) continue;
    throw ArgumentError("INLAY_ISA: '" + requested + "' cannot run here: " + why_not +
                        "; available: " + joined(available_isas()));
  }
  throw ArgumentError("INLAY_ISA: '" + requested + "' is not a kernel variant of this build (" +
                      joined(compiled_isas()) + ")");
}

}  // namespace

std::vector<IsaVariant> isa_variants() {
  std::vector<IsaVariant> all;
  for (const Variant& variant : kVariants) all.push_back({&variant.table, problem(variant)});
  return all;
}

std::vector<std::string> available_isas() {
  std::vector<std::string> names;
  for (const IsaVariant& variant : isa_variants())
    if (variant.problem.empty()) names.emplace_back(variant.table->isa);
  return names;
}

std::vector<std::string> compiled_isas() {
  std::vector<std::string> names;
  for (const Variant& variant : kVariants) names.emplace_back(variant.table.isa);
  return names;
}

const KernelTable& selected() {
  const KernelTable* table = selection.table.load(std::memory_order_acquire);
  if (table == nullptr) {
    const std::lock_guard lock(selection.mutex);
    table = choose(selection.requested);
    selection.table.store(table, std::memory_order_release);
  }
  return *table;
}

void request_isa(std::string_view name) {
  const std::lock_guard lock(selection.mutex);
  selection.requested = name;
  selection.table.store(nullptr, std::memory_order_release);
}

std::vector<std::string> cpu_features() {
  const CpuFeatures& f = features;
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
