// Paths that were lost although their peer lives are made again, by a thread that there is only
// since the first of them.
#pragma once

#include <condition_variable>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <thread>

#include "transport.h"

namespace inlay::transfer {

class Returns {
 public:
  // Makes a path and hands it to its peer. False: it may be tried again.
  using Make = std::function<bool(const std::shared_ptr<PathOwner>& peer)>;

  // Rests before the first try, then twice as long before each next one.
  Returns(Clock::duration first_rest, Clock::duration longest_rest)
      : first_rest_(first_rest), longest_rest_(longest_rest) {}
  ~Returns() { close(); }

  // Of any thread; does not wait. Forgotten when the peer is, or has ended.
  void add(std::weak_ptr<PathOwner> peer, Make make);
  // Waits for a try that is under way; there is none afterwards.
  void close();

 private:
  struct Lost {
    std::weak_ptr<PathOwner> peer;
    Make make;
    Clock::time_point next;
    Clock::duration rest;
  };

  void run();

  const Clock::duration first_rest_;
  const Clock::duration longest_rest_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool closed_ = false;
  std::list<Lost> lost_;
  std::thread thread_;
};

}  // namespace inlay::transfer
