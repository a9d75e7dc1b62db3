// What a way to move bytes has to implement, and whom it tells.
//
//   Transport   one per engine: makes memory reachable, offers itself to peers, connects to them
//   Path        one way to one peer; moves slices
//   PathOwner   the peer whose paths these are; hears how attempts end
//
// Order of locks: a path's own, then the peer's, then the batch's. A path may report completions
// with its lock held; it is never called with the peer's lock held.
//
// What holds for every path:
//   - what post() refuses has not begun;
//   - after the end of an attempt nothing of it lands in local memory, and, if it was reported
//     settled, nothing in remote memory;
//   - a range outside a segment, a closed segment or one without access is never touched; who owns
//     the memory checks it again, since initiators are other processes.
#pragma once

#include <poll.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "../core/status.h"
#include "../net/handshake.h"
#include "../net/loop.h"
#include "mapped_segment.h"
#include "request.h"
#include "segment.h"

namespace inlay::transfer {

using Bytes = std::vector<std::byte>;

// What a pair of memories can expect of a path.
struct Reach {
  double bandwidth;  // bytes/s
  double base_s;     // of a slice of no bytes
};
// What ways are compared by: the time of a MiB.
inline double seconds_to_compare(const Reach& reach) {
  return (uint64_t{1} << 20) / reach.bandwidth + reach.base_s;
}

// Which work a path takes. Small: submissions of at most 64 KiB for the peer.
enum class Traffic : uint8_t { kAny, kSmall, kBulk };

enum class Posted : uint8_t {
  kTaken,    // its end will be reported
  kDone,     // it is complete already; nothing will be reported
  kRefused,  // nothing was begun; nothing will be reported
};
struct PostResult {
  Posted how;
  Status why = Status::kOk;  // of a refusal
};

class Path {
 public:
  virtual ~Path() = default;

  virtual std::string_view transport() const = 0;
  virtual std::string name() const = 0;  // for people, e.g. "tcp 10.0.0.1 -> 10.0.0.2"
  virtual Traffic traffic() const { return Traffic::kAny; }
  // It honours Request::verify: what lands otherwise than it left ends its attempt with kChecksum.
  // Other paths are not given such requests.
  virtual bool verifies() const { return false; }

  // It has other paths of the peer do the work, which try again: its errors are final.
  virtual bool passes_on() const { return false; }

  // Whether it moves bytes between these two, and how well. Pure, at most 100 ns, any thread.
  virtual std::optional<Reach> reach(const Segment& local, const RemoteSegment& remote,
                                     Op op) const = 0;

  // Takes an attempt on. Never waits; copies at most 256 KiB itself. After any number of posts
  // comes one kick(), which begins what was taken, without waiting.
  virtual PostResult post(Attempt& attempt) = 0;
  virtual void kick() {}

  // Moves bytes without waiting, for at most about 100 us; true when some moved. Whoever pumps
  // calls PathOwner::fill() after it, also a path's own threads.
  virtual bool pump() = 0;
  // A waiter that gets true pumps until stop_driving(), and what else pumps the path (the loop)
  // pauses meanwhile. `driver` is signalled when there is something new to do. Paths that any
  // number of threads pump say true to all.
  virtual bool try_drive(const net::WakeUp& driver) = 0;
  virtual void stop_driving(const net::WakeUp& driver) = 0;
  // What a driver sleeps on; fd -1: only on its own wake-up.
  virtual pollfd sleep_on() { return {-1, 0, 0}; }

  // Ends attempts of `owner` with kCancelled, each reported before this returns: all that are not
  // begun, and all reads. Writes under way stay.
  virtual void revoke(const void* owner) = 0;
  // Gives up the writes of `owner` that are still under way: reported as not settled before this
  // returns; their memory here is free. Those of far memory, which nobody calls back, end later.
  virtual void abandon(const void* owner) = 0;
  // Ends everything with `why`. Afterwards nothing lands here through this path, no attempt is
  // left, and it calls its owner no more, except settled().
  virtual void close(Status why) = 0;

  // The memory of a segment of the peer, in this process's address space. `then` is called once, on
  // any thread, without locks; with kTransportUnavailable where this path leads to no such memory.
  using Mapped = std::function<void(Status, std::shared_ptr<const MappedSegment>)>;
  virtual void map(const RemoteSegment& remote, Mapped then) {
    (void)remote;
    then(Status::kTransportUnavailable, nullptr);
  }

  // A question for the same transport of the peer, whose answer with kOk says that nothing that was
  // posted here lands there any more. Empty: what is reported here is always settled.
  virtual Bytes fence() const { return {}; }
  // Of a path that has ended: when what was posted here can land no more even if the fence is never
  // answered; max() for never.
  virtual Clock::time_point settled_by() { return Clock::time_point::max(); }
};

// Of any thread. What is marked (locked) may be called with the path's lock held; the other calls
// need it free.
class PathOwner {
 public:
  // (locked) An attempt is over, once for each taken. kPeerUnreachable, kPeerDied, kProtocol,
  // kTransportUnavailable and kChecksum are the path's fault: the slice goes another way, the path
  // gets a rest.
  // Other errors are final. `settled` false: a write that may still land; settled() tells later, or
  // the path is lost, and then its fence().
  virtual void completed(Attempt& attempt, Status status, bool settled = true) = 0;
  // (locked) Later, for an attempt that was completed without being settled: it landed or cannot.
  virtual void settled(Attempt& attempt) = 0;
  // The path ended by itself. It has reported its attempts before.
  virtual void lost(Path& path, Status why) = 0;
  // One more path, e.g. when a link came back.
  virtual void add(std::shared_ptr<Path> path) = 0;
  // Posts what waits for room. Frees what was kept for ended attempts.
  virtual void fill() = 0;

  // Asks the transport of that name in the peer's engine; see Transport::answer(). `then` is called
  // once, on any thread, without locks; with kPeerUnreachable when no connection is left.
  using Then = std::function<void(Status, Bytes)>;
  virtual void ask(std::string_view transport, Bytes question, Then then) = 0;

  // False: what is added is closed at once.
  virtual bool alive() const { return true; }
  virtual const net::EngineId& engine_id() const = 0;
  virtual const std::string& peer_address() const = 0;

 protected:
  ~PathOwner() = default;
};

class NicShares;

// Where a transport lives. Outlives it.
struct Site {
  net::Loop& loop;
  SegmentRegistry& segments;
  net::EngineId engine;
  net::Token token;
  std::string runtime_dir;  // of mode 0700; empty: there is none
  int spin_us;
  std::string host;      // where the engine listens, without the port
  bool by_name = false;  // the transports were asked for by name
  NicShares* shares = nullptr;
};

class Transport {
 public:
  virtual ~Transport() = default;

  virtual std::string_view name() const = 0;  // at most 32 bytes
  // Why it does not work here; empty when it does. Of those that do not, nothing else is called,
  // except of one whose problem shows later.
  virtual std::string problem() const { return {}; }

  // Makes a segment reachable: the key that peers need for it, at most 4096 bytes, travels in the
  // segment's descriptor. Nothing for memory that it cannot serve. Throws what registration raises.
  virtual Bytes attach(Segment& segment) = 0;
  // The segment is closed; returns when no peer touches it through this transport, or false when
  // that was not so by then. Called again when the owner tries again.
  virtual bool detach(Segment& segment, Clock::time_point until) = 0;

  // What a peer needs to connect, at most 16 KiB.
  virtual Bytes offer() = 0;
  struct Connected {
    std::vector<std::shared_ptr<Path>> paths;
    std::string problem;  // why there are none
  };
  // Ways to the peer that offered this. Waits at most until `end`. May add() and lose paths later.
  // Paths hold `peer` weakly and lock it for the length of a call.
  virtual Connected connect(const std::shared_ptr<PathOwner>& peer,
                            std::span<const std::byte> offer, Clock::time_point end) = 0;

  // The target's side of PathOwner::ask() and Path::fence(). On the loop's thread; does not wait.
  struct Answer {
    Status status = Status::kOk;
    Bytes bytes;  // at most 64 KiB
  };
  virtual Answer answer(const net::EngineId& from, std::span<const std::byte> question) {
    (void)from;
    (void)question;
    return {Status::kProtocol, {}};
  }

  // On the loop's thread, as often as Loop::wake_by() asks for. Returns when to be called again.
  virtual Clock::time_point tick(Clock::time_point now) {
    (void)now;
    return Clock::time_point::max();
  }

  // Ends threads and descriptors; the loop has stopped, and all paths are closed. Afterwards no
  // peer reaches memory here.
  virtual void close() = 0;
};

}  // namespace inlay::transfer
