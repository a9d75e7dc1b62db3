// One engine: its segments, its port, its peers, and the thread that serves them.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "../net/handshake.h"
#include "../net/loop.h"
#include "arrivals.h"
#include "batch.h"
#include "disk_file.h"
#include "far_memory.h"
#include "messenger.h"
#include "nic_share.h"
#include "peer.h"
#include "segment.h"
#include "server.h"
#include "transports.h"
#include "turn_queue.h"

namespace inlay::transfer {

struct EngineOptions {
  std::string listen;
  net::Token token;
  int spin_us = 50;
  std::vector<std::string> transports = {};           // names; empty: all that work here
  std::string runtime_dir = {};                       // of mode 0700, for what processes here share
  uint32_t weight = 8;                                // its part of network cards that it shares
  std::map<std::string, double> nic_bandwidths = {};  // bytes/s by card; learned where missing
  std::vector<Plugin> plugins = {};                   // transports beside those of the engine
};

class Engine {
 public:
  // Throws what listen_at() throws, and ArgumentError for a token too short or too long.
  explicit Engine(EngineOptions options);
  // Not in a forked child: see made_here().
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  const std::string& address() const { return address_; }
  const net::EngineId& id() const { return id_; }
  // False in a forked child of the engine's process, which has neither its thread nor its sockets.
  bool made_here() const { return generation_ == net::fork_generation(); }

  std::vector<Transports::Problem> transports() const { return transports_->problems(); }

  // Throws what SegmentRegistry::add() throws.
  void add(const std::shared_ptr<Segment>& segment);
  std::string free_name();
  // Registers a file. Throws what DiskFile and add_far() throw.
  std::shared_ptr<Segment> add_file(const FileOptions& options, const std::string& name,
                                    Access access, const std::function<void()>& interrupted);
  // Before the first device memory. Throws what CudaTransport::start() throws.
  void start_cuda();
  // Registers memory of a CUDA device, which `keeper` keeps. Throws what CudaTransport::open() and
  // add_far() throw.
  std::shared_ptr<Segment> add_device(uint64_t address, uint64_t size, bool writable,
                                      std::shared_ptr<const void> keeper, const std::string& name,
                                      Access access, const std::function<void()>& interrupted);
  // Registers far memory; as_remote of it is what this engine's own transfers name. Throws what
  // connect() and add() throw.
  struct FarOptions {
    std::shared_ptr<FarMemory> memory;
    uint64_t size;
    bool writable;
    net::Location location;
  };
  std::shared_ptr<Segment> add_far(FarOptions options, const std::string& name, Access access,
                                   const std::function<void()>& interrupted);
  // Closes the segment and waits until nobody uses it; false: the time was over, the segment stays
  // closed and its memory must stay. `cancel` ends the batches and lanes that use it.
  bool remove(const std::shared_ptr<Segment>& segment, bool cancel, Clock::time_point until);

  // Throws TransferFailure: kPeerUnreachable, kPeerRefused, kProtocol, kProtocolVersion. The living
  // peer, where there is a connection to that engine. `interrupted` is asked each 100 ms.
  std::shared_ptr<Peer> connect(const std::string& address, double timeout_s,
                                const std::function<void()>& interrupted);

  // Checks all requests, then starts them. Throws TransferFailure or ArgumentError: none started.
  // When the batch is done, its peers get the notification, if any, as a message.
  std::shared_ptr<Batch> submit(std::vector<Request> requests, double deadline_s,
                                const std::optional<Bytes>& notification = {});

  // Paths of all peers, also of those that are lost until another connection takes their place.
  std::vector<PathSnapshot> paths() const;
  // Slices take that path no more, or again. Throws ArgumentError: there is none of that name.
  void hold(const std::string& peer, const std::string& transport, const std::string& name,
            bool held);
  const PortCounts& port() const { return server_->counts(); }

  // Ends a batch; what is not answered within `grace` is given up. Returns at once.
  void cancel(Batch& batch, Clock::duration grace);

  // Throws kEngineClosed where the engine is closed.
  Messenger& messenger();
  Arrivals& arrivals();

  // Fails all batches and ends the thread. Returns the segments, so that what kept their memory is
  // let go by the caller's thread.
  std::vector<std::shared_ptr<Segment>> close();

 private:
  void require_open() const;
  Clock::time_point tick(Clock::time_point now);
  std::vector<std::shared_ptr<Peer>> peers() const;
  std::shared_ptr<Peer> connect_once(const std::string& address, Clock::time_point end,
                                     const std::function<void()>& interrupted);
  void add_peer(const std::shared_ptr<Peer>& peer);
  std::shared_ptr<Peer> find_peer(const net::EngineId& id) const;
  void check(const Request& request) const;
  std::shared_ptr<StagingArea> staging();

  const unsigned generation_ = net::fork_generation();
  const int spin_us_;
  std::string address_;
  SegmentRegistry segments_;
  net::Loop loop_;
  NicShares shares_;
  const net::EngineId id_;
  std::unique_ptr<Transports> transports_;
  Arrivals arrivals_;
  const std::shared_ptr<Messenger> messenger_ = std::make_shared<Messenger>(loop_);
  std::shared_ptr<Server> server_;
  std::atomic<bool> closed_{false};
  std::atomic<uint64_t> last_name_{0};

  mutable std::mutex mutex_;
  TurnQueue connecting_;  // one connect at a time, so that none fences another
  uint32_t last_generation_ = 0;
  std::vector<std::shared_ptr<Peer>> peers_;
  std::weak_ptr<Peer> connecting_to_;      // not yet among them
  std::shared_ptr<net::FileQueue> files_;  // since the first file
  std::mutex making_staging_;
  std::shared_ptr<StagingArea> staging_;  // since far memory was first local
};

}  // namespace inlay::transfer
