// Network links of this process's network as they go up and down, from netlink(7).
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "loop.h"

namespace inlay::net {

struct LinkEvent {
  enum class Change {
    kUp,         // it can carry bytes
    kDown,       // disabled, no carrier, or gone
    kAddresses,  // one was added or removed, or lives longer
  };
  std::string name;
  Change change;
};

// Tells of every link once, as it is, and then of each change; within 5 ms of a cut (measured). So
// what is read about links after the constructor and brought up to date by events is whole. Where
// the kernel drops messages the links are asked for again.
class LinkWatch {
 public:
  // Called on the loop's thread.
  using Callback = std::function<void(const LinkEvent&)>;

  // Throws ResourceError where the system offers no netlink, as in some sandboxes.
  LinkWatch(Loop& loop, Callback callback);
  LinkWatch(const LinkWatch&) = delete;
  LinkWatch& operator=(const LinkWatch&) = delete;
  // On the loop's thread or after its stop(): elsewhere a call may still be under way.
  ~LinkWatch();

 private:
  class Reader;

  Loop& loop_;
  std::shared_ptr<Reader> reader_;
  Loop::Id id_ = 0;
};

}  // namespace inlay::net
