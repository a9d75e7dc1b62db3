#include "pending.h"

#include <nanobind/stl/optional.h>

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "array.h"
#include "module.h"

namespace inlay::bindings {

using namespace nb::literals;
using kernels::Ticket;
using Clock = std::chrono::steady_clock;

namespace {

struct Abandoned {
  std::shared_ptr<Ticket> ticket;
  std::shared_ptr<const void> kept;
};

// What dropped Pendings kept for work that was not done; the GIL guards it. Only a Python thread
// can let go of Python objects, so the next Pending does. Never destroyed: at exit work may
// still be running.
std::vector<Abandoned>& abandoned() {
  static auto* const list = new std::vector<Abandoned>();
  return *list;
}

}  // namespace

Pending::Pending(std::shared_ptr<Ticket> ticket, std::shared_ptr<const void> kept)
    : ticket_(std::move(ticket)), kept_(std::move(kept)) {
  std::erase_if(abandoned(), [](const Abandoned& entry) { return entry.ticket->done(); });
}

Pending::~Pending() {
  if (ticket_ == nullptr || done()) return;
  abandoned().push_back({ticket_, std::move(kept_)});
  // If the process exits before the work is done, this is no leak to complain about.
  nb::set_leak_warnings(false);
}

void Pending::wait(std::optional<double> timeout_s) {
  if (timeout_s && !(*timeout_s >= 0 && *timeout_s <= kMaxTimeout_s))
    fail("timeout_s: must be in 0..", kMaxTimeout_s, " or None, got ", *timeout_s);
  const Clock::time_point end = timeout_s
                                    ? Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                                         std::chrono::duration<double>(*timeout_s))
                                    : Clock::time_point::max();
  // The object may be dropped or waited for by another thread while the GIL is released.
  const std::shared_ptr<Ticket> ticket = ticket_;
  for (;;) {
    const Clock::time_point now = Clock::now();
    const auto left = std::max(Clock::duration(0), end - now);
    bool done = false;
    {
      const nb::gil_scoped_release unlocked;
      done = ticket->wait(std::min<Clock::duration>(left, kSignalCheck));
    }
    if (done) break;
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
    if (Clock::now() >= end)
      throw WaitTimeoutError(joined("the submitted work was not done after ", *timeout_s,
                                    " s; wait again, or without a timeout"));
  }
  // Emptied before anything is let go, which may run Python code that comes back here.
  const std::shared_ptr<const void> released = std::exchange(kept_, nullptr);
}

Pending submit(std::function<void()> work, std::shared_ptr<const void> kept) {
  return Pending(kernels::AsyncQueue::instance().submit(std::move(work)), std::move(kept));
}

void register_pending(nb::module_& m) {
  nb::class_<Pending>(m, "Pending")
      .def("wait", &Pending::wait, "timeout_s"_a = nb::none())
      .def_prop_ro("done", &Pending::done);
}

}  // namespace inlay::bindings
