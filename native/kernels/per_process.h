// One object per process, made at first use and never destroyed: at exit its threads sleep or spin
// on memory that must stay.
//
// A forked child makes its own, because threads do not survive fork. It leaves the parent's behind
// as it is, whose mutexes may be held by threads that the child does not have.
#pragma once

#include <pthread.h>

#include <atomic>
#include <mutex>

namespace inlay::kernels {

template <typename T>
class PerProcess {
 public:
  // make() returns a new T; called once per process.
  template <typename Make>
  static T& get(Make&& make) {
    T* object = object_.load(std::memory_order_acquire);
    if (object != nullptr) return *object;
    (void)fork_handlers_;
    const std::lock_guard lock(creation_);
    object = object_.load(std::memory_order_acquire);
    if (object == nullptr) {
      object = make();
      object_.store(object, std::memory_order_release);
    }
    return *object;
  }

 private:
  static void before_fork() { creation_.lock(); }
  static void in_parent() { creation_.unlock(); }
  static void in_child() {
    object_.store(nullptr, std::memory_order_relaxed);
    creation_.unlock();
  }

  static inline std::atomic<T*> object_{nullptr};
  static inline std::mutex creation_;
  // Registered when the library is loaded, before anyone can hold the mutex.
  static inline const int fork_handlers_ = pthread_atfork(before_fork, in_parent, in_child);
};

}  // namespace inlay::kernels
