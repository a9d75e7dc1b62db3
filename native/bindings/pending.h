// The Python side of asynchronous calls: `Pending`, what a submit function returns.
//
//   return submit([=] { kernels::moe(...); }, {x_TM, experts, out_TM});
//
// The work runs without the GIL on the queue's thread, so it captures no Python object: pointers
// and sizes only. The objects that own this memory are handed over beside it.
#pragma once

#include <nanobind/nanobind.h>

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "../kernels/async_queue.h"

namespace inlay::bindings {

namespace nb = nanobind;

class Pending {
 public:
  Pending(std::shared_ptr<kernels::Ticket> ticket, std::vector<nb::object> kept);
  Pending(Pending&&) = default;
  ~Pending();

  bool done() const { return ticket_->done(); }
  // Throws WaitTimeoutError, or what the work threw. Without a limit, signals still interrupt it.
  void wait(std::optional<double> timeout_s);

 private:
  std::shared_ptr<kernels::Ticket> ticket_;
  std::vector<nb::object> kept_;  // owners of the memory that the work uses, until it is done
};

// Queues `work`. The objects live until it is done, also when the Pending does not.
Pending submit(std::function<void()> work, std::vector<nb::object> kept);

}  // namespace inlay::bindings
