// Copies that a device makes in the order of posting: one stream of the driver, and one thread that
// starts them and looks for their ends.
//
// The thread is the only one that has the device's context for long. It looks for ends by asking:
// a wait inside the driver could not be ended by stop(), nor see what is posted meanwhile. With
// nothing under way it sleeps.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "driver.h"

namespace inlay::net::cuda {

// Copies that end together.
class Copies {
 public:
  // Called once, by the stream's thread, or by whoever posts to a stream that was stopped:
  // kSuccess, an error of the driver, or kCancelled. Nothing is touched any more then.
  using Done = std::function<void(Result)>;
  static constexpr Result kCancelled = -1;

  explicit Copies(Done done) : done_(std::move(done)) {}

  // Before they are posted. Each end is memory of the device, of another one, or of the host.
  void add(Address to, Address from, uint64_t bytes);
  // What is not begun is left. Of any thread; does not wait.
  void cancel() { cancelled_.store(true); }

 private:
  friend class Stream;
  struct Run {
    Address to;
    Address from;
    uint64_t bytes;
  };

  Done done_;
  std::vector<Run> runs_;
  uint64_t bytes_ = 0;
  std::atomic<bool> cancelled_{false};
};

class Stream {
 public:
  // `spin_us`: how long the thread asks without a pause. Throws ResourceError when there is no
  // thread, TransferFailure(kTransportUnavailable) when the driver gives no stream.
  Stream(const Driver& driver, Context context, int spin_us);
  ~Stream() { stop(); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  // Of any thread; does not wait.
  void post(std::shared_ptr<Copies> copies);
  // What has not begun is cancelled; returns when nothing is under way. Not of a Done.
  void stop();
  // Of copies that are not posted.
  static void end(Copies& copies, Result result) { std::exchange(copies.done_, nullptr)(result); }

 private:
  using Clock = std::chrono::steady_clock;
  struct UnderWay {
    std::shared_ptr<Copies> copies;
    Event event;
    Result result;
  };

  void run();
  std::shared_ptr<Copies> take();
  void begin(std::shared_ptr<Copies> copies);
  void look();
  void pause(Clock::time_point since);
  Event take_event(Result& result);

  const Driver& driver_;
  const Context context_;
  const int spin_us_;
  StreamHandle stream_ = nullptr;

  // Of the thread alone:
  std::deque<UnderWay> under_way_;
  uint64_t bytes_under_way_ = 0;
  std::vector<Event> events_;  // that are free

  std::mutex mutex_;
  std::condition_variable posted_;
  std::deque<std::shared_ptr<Copies>> waiting_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace inlay::net::cuda
