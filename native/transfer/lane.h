// The initiator's end of a connection: cuts slices from batches, posts them, and takes the answers.
//
// Answers come in the order of requests, so the lane is a queue: the oldest unanswered slice is at
// its front. Whoever waits for a batch drives its lanes; a lane that nobody drives is the loop's.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "../net/loop.h"
#include "../net/stream.h"
#include "batch.h"

namespace inlay::transfer {

class Lane : public net::Handler, private net::Sink, public std::enable_shared_from_this<Lane> {
 public:
  Lane(net::Loop& loop, net::Descriptor socket, std::weak_ptr<Peer> peer);

  // Registers with the loop.
  void start();
  // Takes a part on and sends what the socket takes now.
  void add(Part& part);
  // No further slices of this part: drops what is not begun, lands no more of its reads.
  void stop(Part& part);
  // Gives up what is unanswered of a stopped part. Loses the lane when one of its slices is half
  // sent, for the rest would come from memory that is no longer the lane's.
  void give_up(Part& part);
  // Ends the connection and fails its parts. `remote_gone`: the other end is closed, so nothing
  // lands there any more.
  void lose(Status why, bool remote_gone);

  // Sends and receives once each without waiting; true when bytes moved.
  bool pump();
  // One thread at a time drives; the loop leaves the lane alone meanwhile.
  // `driver` is signalled when others left bytes to send.
  bool try_drive(const net::WakeUp& driver);
  void stop_driving();
  const net::Descriptor& socket() const { return socket_; }
  bool has_unsent();

  // With the lane locked.
  template <typename Read>
  auto locked(Read&& read) {
    const std::lock_guard lock(mutex_);
    return read();
  }
  std::vector<std::shared_ptr<Batch>> batches();

  bool on_events(uint32_t events) override;

 private:
  struct Slice {
    uint64_t serial;
    std::shared_ptr<Batch> batch;
    Part* part;  // null: stopped, nobody counts on the answer
    uint32_t request;
    bool is_read;
    bool is_lookup;
    bool given_up;  // a write whose batch did not wait for the answer
    uint64_t bytes;
    net::Pieces landing;
  };

  // All with the lane locked:
  void post();
  bool post_next(Part& part);
  void post_lookup(Part& part);
  void push(net::Frame frame, Slice slice, std::span<const net::WireRange> ranges,
            net::Pieces payload);
  void finish_if_over(Part& part);
  void settle(Slice& slice, Status status);
  void watch();
  void fail_part(Part& part, Status why);

  const char* on_frame(const net::Frame& frame, std::span<const net::WireRange> ranges,
                       net::Pieces& landing) override;
  const char* on_payload_end() override;

  net::Loop& loop_;
  const net::Descriptor socket_;
  const std::weak_ptr<Peer> peer_;
  net::Loop::Id loop_id_ = 0;

  std::atomic<int> wanted_{0};  // callers that the driver has to let in
  std::mutex mutex_;
  bool lost_ = false;
  Status lost_why_ = Status::kOk;
  const net::WakeUp* driver_ = nullptr;
  uint32_t events_ = 0;
  uint64_t last_serial_ = 0;
  uint64_t in_flight_bytes_ = 0;
  net::Inbox inbox_;
  net::Outbox outbox_;
  std::deque<Slice> sent_;
  std::deque<Part*> ready_;   // parts with slices left, in turn
  std::vector<Part*> parts_;  // all unfinished; their batches are held by held_
  std::vector<std::shared_ptr<Batch>> held_;
  Status answer_ = Status::kOk;  // of the frame that arrives
};

}  // namespace inlay::transfer
