// The stand-in driver's streams: each has a thread that copies in the order of posting, as slowly
// as it is told to.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <mutex>
#include <random>
#include <thread>

namespace {

using Result = int;
constexpr Result kSuccess = 0;
constexpr Result kIllegalAddress = 700;
constexpr std::size_t kPiece = 64 << 10;

std::atomic<int> under_way{0};
std::atomic<int> delay_us{0};
std::atomic<bool> held{false};
std::atomic<int> fault_after{-1};
std::atomic<Result> fault{kSuccess};
std::atomic<int> copies{0};

struct Event {
  std::atomic<uint64_t> recorded{0};
  std::atomic<uint64_t> reached{0};
};

class Stream {
 public:
  Stream() : thread_([this] { run(); }) {}
  ~Stream() {
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
    }
    posted_.notify_one();
    thread_.join();
  }

  struct Work {
    std::byte* to = nullptr;
    const std::byte* from = nullptr;
    std::size_t bytes = 0;
    Event* event = nullptr;
    uint64_t mark = 0;
    uint32_t* word = nullptr;  // to set to `value`, or to wait for
    uint32_t value = 0;
    bool waits = false;
  };
  void post(Work work) {
    ++under_way;
    {
      const std::lock_guard lock(mutex_);
      works_.push_back(work);
    }
    posted_.notify_one();
  }
  void wait() {
    std::unique_lock lock(mutex_);
    idle_.wait(lock, [this] { return works_.empty(); });
  }

 private:
  void run() {
    std::minstd_rand random(static_cast<unsigned>(reinterpret_cast<uintptr_t>(this)));
    std::unique_lock lock(mutex_);
    for (;;) {
      posted_.wait(lock, [this] { return ending_ || !works_.empty(); });
      if (works_.empty()) return;
      const Work work = works_.front();
      lock.unlock();
      if (work.event != nullptr)
        work.event->reached.store(work.mark);
      else if (work.word != nullptr)
        meet(work);
      else
        copy(work, random);
      --under_way;
      lock.lock();
      works_.pop_front();
      if (works_.empty()) idle_.notify_all();
    }
  }

  static void meet(const Work& work) {
    const std::atomic_ref<uint32_t> word(*work.word);
    if (!work.waits && fault.load() == kSuccess) word.store(work.value);
    while (work.waits && fault.load() == kSuccess &&
           static_cast<int32_t>(word.load() - work.value) < 0)
      usleep(50);
  }

  static void copy(const Work& work, std::minstd_rand& random) {
    for (std::size_t at = 0; at < work.bytes; at += kPiece) {
      const int delay = delay_us.load();
      if (delay > 0) usleep(random() % static_cast<unsigned>(delay));
      while (held.load()) usleep(100);
      if (fault.load() != kSuccess) return;
      std::memcpy(work.to + at, work.from + at, std::min(kPiece, work.bytes - at));
    }
    if (++copies == fault_after.load()) fault.store(kIllegalAddress);
  }

  std::mutex mutex_;
  std::condition_variable posted_;
  std::condition_variable idle_;
  std::deque<Work> works_;
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace
