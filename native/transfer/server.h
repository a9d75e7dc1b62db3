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

#include "../net/handshake.h"
#include "../net/loop.h"
#include "../net/socket.h"
#include "../net/stream.h"
#include "answers.h"
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
  // Closes connections that do not prove themselves in time. Returns when to be called again.
  net::Clock::time_point tick(net::Clock::time_point now);
  // What an initiator asks about one of its lanes.
  Transport::Answer answer(const net::EngineId& engine, const LaneQuestion& question);
  const PortCounts& counts() const { return counts_; }  // of any thread
  // Ends the use of a closed segment by peers, at the price of the lanes that are sending from it.
  void evict(const Segment& segment);

  bool on_events(uint32_t events) override;  // of the listening socket

 private:
  friend class ServedLane;

  void accept_one(net::Descriptor socket);
  // Nothing of the lane lands afterwards.
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
  net::Descriptor socket_;
  net::Loop::Id loop_id_ = 0;
  bool accepting_ = true;
  PortCounts counts_;
  // In the order of accepting: the first unproven one is the oldest.
  std::vector<std::shared_ptr<ServedLane>> unproven_;
  std::unordered_map<ServedLane*, std::shared_ptr<ServedLane>> proven_;
};

// One connection, from accept to its end.
class ServedLane : public net::Handler,
                   public SharedLane,
                   private net::Sink,
                   public std::enable_shared_from_this<ServedLane> {
 public:
  ServedLane(Server& server, net::Descriptor socket, const net::Nonce& nonce);

  bool on_events(uint32_t events) override;
  net::Load take_load(net::Direction direction) override;
  void resume() override;

 private:
  friend class Server;

  enum class Turn { kIdle, kWorked, kOver };

  Turn shake_hands();
  Turn serve();
  void watch();
  bool send_output();
  // Skips the rest of the write that arrives.
  void end_write(Status why);
  void end_use(const Segment& segment);  // or drops the lane

  const char* on_frame(const net::Frame& frame, std::span<const net::WireRange> ranges,
                       net::Pieces& landing) override;
  const char* on_payload_end() override;
  bool paused() const override;

  Status check(const net::Frame& frame, std::span<const net::WireRange> ranges,
               net::Pieces& memory);
  Status stage(const net::Frame& frame, std::span<const net::WireRange> ranges);
  void start_staged();
  void end_staged(const std::shared_ptr<StagedMove>& move, uint64_t place, net::Frame answer);
  void wait_for_writes();
  void answer(net::Kind kind, Status status, uint64_t bytes = 0, net::Pieces payload = {},
              std::shared_ptr<const void> kept = {});
  void answer_text(net::Kind kind, Status status, Bytes text);
  void answer_lookup();
  void answer_question();

  static constexpr std::size_t kMaxQueued = 64;  // answers, then it reads no further requests

  Server& server_;
  net::Descriptor socket_;
  net::Loop::Id loop_id_ = 0;
  uint32_t events_ = 0;
  bool has_more_ = false;      // its turn ended before its work
  uint64_t lease_end_ms_ = 0;  // writes land until then
  const net::Clock::time_point accepted_ = net::Clock::now();
  net::ServerHandshake handshake_;
  std::vector<std::byte> received_;  // of the handshake
  bool proven_ = false;

  net::Inbox inbox_;
  net::Outbox outbox_;
  Answers answers_;
  net::Frame request_;  // the one whose payload arrives
  Status request_status_ = Status::kOk;
  std::shared_ptr<SegmentUse> use_;                 // of that request
  std::vector<std::byte> text_;                     // payload of a LOOKUP or ASK
  std::shared_ptr<StagedMove> staged_;              // of that request
  std::vector<std::shared_ptr<StagedMove>> moves_;  // started, not over
  bool uses_files_ = false;
};

}  // namespace inlay::transfer
