// The clock of the transport: leases, tries to connect and stalls are looked after at its beat.
#pragma once

#include <sys/timerfd.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <functional>

#include "../net/loop.h"

namespace inlay::transfer {

// Calls the transport ten times a second.
class FabricBeat final : public net::Handler {
 public:
  explicit FabricBeat(std::function<void()> work)
      : work_(std::move(work)),
        timer_(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK)) {
    itimerspec times{};
    times.it_interval.tv_nsec = std::chrono::nanoseconds(kPeriod).count();
    times.it_value = times.it_interval;
    timerfd_settime(timer_.get(), 0, &times, nullptr);
  }

  const net::Descriptor& timer() const { return timer_; }
  bool on_events(uint32_t) override {
    uint64_t count;
    if (::read(timer_.get(), &count, sizeof(count)) == sizeof(count)) work_();
    return false;
  }

 private:
  static constexpr auto kPeriod = std::chrono::milliseconds(100);
  const std::function<void()> work_;
  const net::Descriptor timer_;
};

}  // namespace inlay::transfer
