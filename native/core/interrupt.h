// Calls that wait may be broken off by the thread that makes them: with Ctrl-C, in Python.
#pragma once

#include <chrono>
#include <exception>
#include <utility>

namespace inlay {

// A call was broken off; whoever did so knows why.
class Interrupted : public std::exception {};

// Says whether what this thread waits for is to be broken off. It may wait for a lock itself, so
// ask without holding one.
using InterruptCheck = bool (*)();
inline thread_local InterruptCheck interrupt_check = nullptr;

// How often a wait asks.
inline constexpr std::chrono::milliseconds kInterruptEvery(50);

inline bool can_be_interrupted() { return interrupt_check != nullptr; }
inline bool interrupted() { return interrupt_check != nullptr && interrupt_check(); }

// While it lives, calls of this thread may be broken off.
class Interruptible {
 public:
  explicit Interruptible(InterruptCheck check) : before_(std::exchange(interrupt_check, check)) {}
  ~Interruptible() { interrupt_check = before_; }
  Interruptible(const Interruptible&) = delete;
  Interruptible& operator=(const Interruptible&) = delete;

 private:
  const InterruptCheck before_;
};

}  // namespace inlay
