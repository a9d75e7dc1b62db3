// A remote engine: its lanes, and what is known of its segments.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "../net/handshake.h"
#include "batch.h"
#include "lane.h"

namespace inlay::transfer {

class Peer : public std::enable_shared_from_this<Peer> {
 public:
  Peer(std::string address, const net::EngineId& engine, int spin_us)
      : address(std::move(address)), engine(engine), spin_us_(spin_us) {}

  const std::string address;
  const net::EngineId engine;

  void start(net::Loop& loop, std::array<net::Descriptor, 2> sockets);
  const std::shared_ptr<Lane>& lane(net::LaneKind kind) const {
    return lanes_[static_cast<std::size_t>(kind)];
  }
  bool alive() const { return lost_.load() == Status::kOk; }
  Status lost() const { return lost_.load(); }

  // Ends all lanes: one that breaks says that the other end, or the way to it, is gone.
  void lose(Status why, bool remote_gone);
  std::vector<std::shared_ptr<Batch>> batches() const;

  // A segment of the peer, remembered until it is closed. Throws TransferFailure; `interrupted` is
  // asked each 100 ms and may throw.
  std::shared_ptr<RemoteSegment> segment(const std::string& name, double timeout_s,
                                         const std::function<void()>& interrupted);

 private:
  const int spin_us_;
  std::array<std::shared_ptr<Lane>, 2> lanes_;
  std::atomic<Status> lost_{Status::kOk};
  std::mutex mutex_;
  std::unordered_map<std::string, std::weak_ptr<RemoteSegment>> segments_;
};

}  // namespace inlay::transfer
