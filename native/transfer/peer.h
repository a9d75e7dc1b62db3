// A remote engine: the lanes that questions go over, the paths that bytes take, and what is known
// of its segments.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "../net/handshake.h"
#include "batch.h"
#include "dispatch.h"
#include "lane.h"
#include "staged_path.h"
#include "transport.h"

namespace inlay::transfer {

class Peer final : public PathOwner, public std::enable_shared_from_this<Peer> {
 public:
  // `generation` counts this engine's connections to peers; see net::Hello.
  Peer(net::Loop& loop, std::string address, const net::EngineId& engine, uint32_t generation)
      : address(std::move(address)),
        engine(engine),
        generation(generation),
        loop_(loop),
        dispatch_(loop) {}
  ~Peer();

  const std::string address;
  const net::EngineId engine;
  const uint32_t generation;

  // Another connection, for questions at least.
  void add_lane(std::shared_ptr<Lane> lane);
  std::vector<std::shared_ptr<Lane>> lanes() const;
  // Who makes new lanes for lost ones; without one the peer is lost with its last lane. `lost` is
  // called without locks, on any thread.
  void watch_lanes(std::function<void(const Path&)> lost);
  // For net::Hello.
  uint64_t next_connection() { return (uint64_t{generation} << 32) + ++last_lane_; }
  // For people: why there is no path of that transport.
  void note_problem(std::string_view transport, std::string text);
  std::vector<std::string> problems() const;

  // Far memory of this engine reaches the peer through these buffers from now on.
  void stage_through(const std::shared_ptr<StagingArea>& area);

  bool alive() const override { return lost_.load() == Status::kOk; }
  // Ends everything; `remote_gone`: nothing lands at the peer any more.
  void lose(Status why, bool remote_gone);
  // It is known now that nothing lands at a lost peer any more.
  void settle() { dispatch_.settle_all(); }
  // Nor will it ever be.
  void forget() { dispatch_.forget(); }
  bool settles() const;  // by itself, later
  // Settles what cannot land any more by now. Returns when to be called again; max(): never.
  Clock::time_point settle_due(Clock::time_point now);

  const Dispatch& dispatch() const { return dispatch_; }
  void enqueue(Part& part);  // fill() posts it
  void stop(Part& part);
  void give_up(Part& part);
  // See Dispatch::hold().
  bool hold(const std::string& transport, const std::string& name, bool held);

  // A segment of the peer, remembered until it is closed. Throws TransferFailure; `interrupted` is
  // asked each 100 ms and may throw.
  std::shared_ptr<RemoteSegment> segment(const std::string& name, double timeout_s,
                                         const std::function<void()>& interrupted);
  // A segment of the peer in this process's address space, for reading: what it allocated, or has
  // in a shared file, where the peer is of this host. Throws TransferFailure, kTransportUnavailable
  // where it cannot be mapped.
  std::shared_ptr<const MappedSegment> map(const RemoteSegment& segment, double timeout_s,
                                           const std::function<void()>& interrupted);
  // Asks and waits. Throws TransferFailure for no answer, not for one with a status.
  struct Answer {
    Status status;
    Bytes bytes;
  };
  Answer ask_and_wait(net::Kind kind, Bytes question, Clock::time_point end,
                      const std::function<void()>& interrupted);

  void completed(Attempt& attempt, Status status, bool settled) override;
  void settled(Attempt& attempt) override;
  void lost(Path& path, Status why) override;
  void add(std::shared_ptr<Path> path) override;
  void fill() override;
  void ask(std::string_view transport, Bytes question, Then then) override;
  const net::EngineId& engine_id() const override { return engine; }
  const std::string& peer_address() const override { return address; }

 private:
  struct Fence {
    std::string transport;
    Bytes question;
    uint64_t removed;  // what the dispatcher calls it
  };

  // Waits for `then`, which it gives to `start`. Throws TransferFailure(kTimeout).
  template <typename T, typename Start>
  std::pair<Status, T> wait_for(Start&& start, Clock::time_point end,
                                const std::function<void()>& interrupted);
  void ask(net::Kind kind, Bytes question, Then then);
  void fence(Fence fence);
  void settle_at(Clock::time_point time, uint64_t removed);

  net::Loop& loop_;
  Dispatch dispatch_;
  std::atomic<Status> lost_{Status::kOk};
  std::atomic<uint32_t> last_lane_{0};
  mutable std::mutex mutex_;
  std::vector<std::string> problems_;
  std::vector<std::shared_ptr<Lane>> lanes_;
  std::function<void(const Path&)> lane_lost_;
  const std::shared_ptr<HostPaths> host_paths_ = std::make_shared<HostPaths>();
  std::once_flag staged_;
  std::vector<Fence> fences_;  // to be asked over the next lane
  // Settled by then, whether or not the fence is answered; kAll: all of a lost peer.
  static constexpr uint64_t kAll = 0;
  std::vector<std::pair<Clock::time_point, uint64_t>> settled_by_;
  std::unordered_map<std::string, std::weak_ptr<RemoteSegment>> segments_;
};

}  // namespace inlay::transfer
