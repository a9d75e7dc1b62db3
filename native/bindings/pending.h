// The Python side of asynchronous calls: `Pending`, what a submit function returns.
//
//   return submit([call = kept->call] { kernels::moe(call); }, kept);
//
// The work runs without the GIL on the queue's thread, so it captures no Python object: pointers
// and sizes only. What keeps this memory in place is handed over beside it.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "../kernels/async_queue.h"

namespace inlay::bindings {

// The longest timeout of a call.
inline constexpr double kMaxTimeout_s = 1e6;

class Pending {
 public:
  Pending(std::shared_ptr<kernels::Ticket> ticket, std::shared_ptr<const void> kept);
  Pending(Pending&&) = default;
  ~Pending();

  bool done() const { return ticket_->done(); }
  // Throws WaitTimeoutError, or what the work threw. Without a limit, signals still interrupt it.
  void wait(std::optional<double> timeout_s);

 private:
  std::shared_ptr<kernels::Ticket> ticket_;
  std::shared_ptr<const void> kept_;  // holds the memory that the work uses, until it is done
};

// Queues `work`. `kept` lives until it is done, also when the Pending does not, and is destroyed
// with the GIL.
Pending submit(std::function<void()> work, std::shared_ptr<const void> kept);

}  // namespace inlay::bindings
