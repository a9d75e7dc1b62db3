// One connection that an initiator made, from accept to its end.
//
// Everything here runs on the loop's thread, so nothing is locked.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "../net/handshake.h"
#include "../net/loop.h"
#include "../net/socket.h"
#include "../net/stream.h"
#include "answers.h"
#include "nic_share.h"
#include "segment.h"
#include "staging.h"
#include "transport.h"

namespace inlay::transfer {

class Server;

class ServedLane : public net::Handler,
                   public SharedLane,
                   private net::Sink,
                   public std::enable_shared_from_this<ServedLane> {
 public:
  ServedLane(Server& server, net::Descriptor socket, const net::Nonce& nonce);

  void start();
  // Closes the connection; waits for what goes to far memory. Nothing of it lands afterwards.
  void end();
  // Writes land until LaneLease::kLength after `since` (0: now), ms since boot. Returns now.
  uint64_t extend_lease(uint64_t since);
  // Ends the use of a closed segment: of what arrives, of what far memory is asked for, and, at the
  // price of the lane, of what is being sent.
  void end_use(const Segment& segment);

  // What the initiator said of itself.
  const net::Hello& hello() const { return handshake_.hello(); }
  net::Clock::time_point accepted() const { return accepted_; }
  bool proven() const { return proven_; }
  bool stages() const { return stages_; }

  bool on_events(uint32_t events) override;
  net::Load take_load(net::Direction direction) override;
  void resume() override;

 private:
  enum class Turn { kIdle, kWorked, kOver };

  Turn shake_hands();
  Turn serve();
  void watch();
  bool send_output();
  // Skips the rest of the write that arrives.
  void end_write(Status why);
  // Whether more of it may land; a piece of it does, until piece_ is reset.
  bool begin_piece();
  void leave_segment();

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
  std::vector<net::WireRange> guarded_;             // its ranges, while a guard watches over them
  std::optional<GuardedPiece> piece_;               // of it, which lands
  std::vector<std::byte> text_;                     // payload of a LOOKUP or ASK
  std::shared_ptr<StagedMove> staged_;              // of that request
  std::vector<std::shared_ptr<StagedMove>> moves_;  // started, not over
  bool stages_ = false;
};

}  // namespace inlay::transfer
