#include "../kernels/limits.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <memory>
#include <optional>

#include "array.h"
#include "module.h"

namespace inlay::bindings {

using namespace nb::literals;
using kernels::AlignedBuffer;
using kernels::Operand;
using kernels::ThreadPool;

namespace {

void require_threads(int threads) {
  if (threads < 1 || threads > 1024) fail("threads: must be in 1..1024, got ", threads);
}

// The process's pool, or one of its own for another number of threads.
class MeasuringPool {
 public:
  explicit MeasuringPool(std::optional<int> threads) {
    if (!threads) return;
    require_threads(*threads);
    own_ = std::make_unique<ThreadPool>(*threads);
  }
  ThreadPool& get() const { return own_ ? *own_ : ThreadPool::instance(); }

 private:
  std::unique_ptr<ThreadPool> own_;
};

class MemoryProbe {
 public:
  explicit MemoryProbe(std::optional<int> threads) : pool_(threads) {
    const nb::gil_scoped_release unlocked;
    buffer_ = kernels::memory_probe(pool_.get());
  }
  double read_gbs() const {
    const nb::gil_scoped_release unlocked;
    return kernels::measure_read_gbs(pool_.get(), buffer_);
  }
  std::size_t nbytes() const { return buffer_.size(); }

 private:
  MeasuringPool pool_;
  AlignedBuffer buffer_;
};

Operand parse_operand(const std::string& kind) {
  if (kind == "fp32") return Operand::kF32;
  if (kind == "bf16") return Operand::kBf16;
  if (kind == "int8") return Operand::kI8;
  fail("kind: must be 'fp32', 'bf16' or 'int8', got '", kind, "'");
}

}  // namespace

void register_limits(nb::module_& m) {
  m.def(
      "memory_probe_bytes",
      [](int threads) {
        require_threads(threads);
        return kernels::memory_probe_bytes(threads);
      },
      "threads"_a);
  nb::class_<MemoryProbe>(m, "MemoryProbe")
      .def(nb::init<std::optional<int>>(), "threads"_a.none() = nb::none())
      .def("read_gbs", &MemoryProbe::read_gbs)
      .def_prop_ro("nbytes", &MemoryProbe::nbytes);
  m.def(
      "measure_peak",
      [](const std::string& kind, std::optional<int> threads) {
        const Operand operand = parse_operand(kind);
        const MeasuringPool pool(threads);
        const nb::gil_scoped_release unlocked;
        return kernels::measure_peak_tops(pool.get(), operand);
      },
      "kind"_a, "threads"_a.none() = nb::none());
}

}  // namespace inlay::bindings
