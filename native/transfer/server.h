// The target's side: the listening port, and the lanes of initiators that it serves.
//
// Everything here runs on the loop's thread, so nothing is locked.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "../net/acceptor.h"
#include "../net/handshake.h"
#include "../net/loop.h"
#include "../net/socket.h"
#include "lane_question.h"
#include "nic_share.h"
#include "segment.h"
#include "snapshot.h"
#include "staging.h"
#include "transport.h"

namespace inlay::transfer {

class ServedLane;

class Server : public net::Handler, public std::enable_shared_from_this<Server> {
 public:
  // What a peer asks of a transport.
  using Answerer =
      std::function<Transport::Answer(const net::EngineId&, std::span<const std::byte>)>;

  Server(const Site& site, net::Descriptor socket, Answerer answerer);
  ~Server() override;

  // Registers with the loop. Once, before the loop starts.
  void start();
  // Closes the port and all lanes. On the loop's thread, or after it has stopped.
  void stop();
  // Closes connections that do not prove themselves in time, and accepts again after a rest.
  // Returns when to be called again.
  net::Clock::time_point tick(net::Clock::time_point now);
  // What an initiator asks about one of its lanes.
  Transport::Answer answer(const net::EngineId& engine, const LaneQuestion& question);
  const PortCounts& counts() const { return counts_; }  // of any thread
  // Ends the use of a closed segment by peers, at the price of the lanes that are sending from it.
  void evict(const Segment& segment);

  bool on_events(uint32_t events) override;  // of the listening socket

 private:
  friend class ServedLane;

  // It proved itself: ends what its engine had before.
  void welcome(ServedLane& lane);
  void accept_one(net::Descriptor socket);
  // Ends it and forgets it.
  void drop(ServedLane& lane);
  // Made at first use.
  StagingPool& staging();
  std::shared_ptr<ServedLane> find(const net::EngineId& engine, uint64_t connection) const;
  // Closes the lanes of an engine's earlier generations: nothing on them can land any more.
  void fence(const net::EngineId& engine, uint64_t connection);

  net::Loop& loop_;
  SegmentRegistry& segments_;
  const net::EngineId engine_;
  const net::Token token_;
  const Answerer answerer_;
  std::optional<StagingPool> staging_;
  NicShares* const shares_;
  net::Acceptor acceptor_;
  PortCounts counts_;
  // In the order of accepting: the first unproven one is the oldest.
  std::vector<std::shared_ptr<ServedLane>> unproven_;
  std::unordered_map<ServedLane*, std::shared_ptr<ServedLane>> proven_;
};

}  // namespace inlay::transfer
