// Transfers that a call of the store waits for.
#pragma once

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>
#include <vector>

#include "../core/interrupt.h"
#include "../transfer/engine.h"

namespace inlay::store {

// Moves bytes from or to the caller's memory, which is left alone when this object ends.
class Moving {
 public:
  // Throws TransferFailure.
  Moving(transfer::Engine& engine, std::vector<transfer::Request> requests,
         std::chrono::steady_clock::time_point until)
      : batch_(engine.submit(std::move(requests), seconds_until(until))) {}
  Moving(Moving&&) = default;
  Moving& operator=(Moving&&) = delete;
  ~Moving() {
    if (batch_ != nullptr && !batch_->over()) stop();
  }

  // Returns when it is over, by its own deadline at the latest. Throws Interrupted when the call is
  // broken off.
  transfer::Batch& finish() {
    const auto step = can_be_interrupted() ? kInterruptEvery : std::chrono::milliseconds(1000);
    while (!batch_->wait(std::chrono::steady_clock::now() + step))
      if (interrupted()) throw Interrupted();
    return *batch_;
  }

 private:
  static double seconds_until(std::chrono::steady_clock::time_point until) {
    const std::chrono::duration<double> left = until - std::chrono::steady_clock::now();
    return std::max(0.001, left.count());
  }
  void stop() {
    batch_->stop(Status::kCancelled, {});
    while (!batch_->wait(std::chrono::steady_clock::now() + std::chrono::seconds(1))) {
    }
  }

  std::shared_ptr<transfer::Batch> batch_;
};

}  // namespace inlay::store
