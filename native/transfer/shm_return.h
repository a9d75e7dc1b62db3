// Links of shared memory that broke although the peer lives are made again, by a thread that there
// is only since the first of them.
#pragma once

#include <condition_variable>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <thread>

#include "transport.h"

namespace inlay::transfer::shm {

class Returns {
 public:
  enum class Outcome : uint8_t {
    kMade,
    kLater,
    kNever,  // the process or its engine is gone
  };
  // Makes a link and hands it to its peer. Waits at most until then.
  using MakeLink = std::function<Outcome(const std::shared_ptr<PathOwner>&,
                                         std::span<const std::byte> offer, Clock::time_point end)>;

  explicit Returns(MakeLink make_link) : make_link_(std::move(make_link)) {}
  ~Returns() { close(); }

  // Of any thread; does not wait. Forgotten when the peer is.
  void add(std::weak_ptr<PathOwner> peer, Bytes offer);
  void close();

 private:
  struct Broken {
    std::weak_ptr<PathOwner> peer;
    Bytes offer;
    Clock::time_point next;
    Clock::duration pause;
  };

  void run();

  const MakeLink make_link_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool closed_ = false;
  std::list<Broken> broken_;
  std::thread thread_;
};

}  // namespace inlay::transfer::shm
