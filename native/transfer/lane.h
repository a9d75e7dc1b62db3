// The initiator's end of a connection: a path that posts slices as frames and takes the answers,
// and what questions to the peer go over.
//
// Answers come in the order of requests, so the lane is a queue: the oldest unanswered request is
// at its front. Whoever waits for a batch drives its lanes; a lane that nobody drives is the
// loop's.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "../net/loop.h"
#include "../net/stream.h"
#include "../net/wire.h"
#include "lane_lease.h"
#include "nic_share.h"
#include "transport.h"

namespace inlay::transfer {

class Lane final : public Path,
                   public net::Handler,
                   public SharedLane,
                   private net::Sink,
                   public std::enable_shared_from_this<Lane> {
 public:
  struct Made {
    net::Descriptor socket;
    uint64_t connection;  // as in net::Hello
    Traffic traffic;
    Reach reach;
    std::string name;
  };
  Lane(net::Loop& loop, Made made, std::weak_ptr<PathOwner> owner);

  // Registers with the loop, and with the shares of its card where there are some.
  void start(NicShares* shares);
  const net::Descriptor& socket() const { return made_.socket; }
  // Ends it and tells its owner.
  void shut(Status why);

  // What the kernel says of the connection.
  struct Health {
    bool busy = false;  // something is unanswered
    uint32_t unacknowledged = 0;
    TimeNs silent_ns = 0;  // so long nothing was acknowledged, although there was something to
    TimeNs round_trip_ns = 0;
  };
  // Also asks something when answers do not come, so that there is something to acknowledge.
  Health look(Clock::time_point now);
  // Whether anything came from the peer's machine lately. If not, asks something, unless bytes
  // are under way.
  bool hear();
  // The loop ticks within `every` of the first post after a rest.
  void watch_health(Clock::duration every) { look_every_ = every.count(); }

  // `then` is called once, without locks; with the reason when the lane ends before the answer.
  void ask(net::Kind kind, Bytes question, PathOwner::Then then);

  std::string_view transport() const override { return "tcp"; }
  bool verifies() const override { return true; }
  std::string name() const override { return made_.name; }
  Traffic traffic() const override { return made_.traffic; }
  std::optional<Reach> reach(const Segment& local, const RemoteSegment& remote,
                             Op op) const override;
  PostResult post(Attempt& attempt) override;
  void kick() override;
  bool pump() override;
  bool try_drive(const net::WakeUp& driver) override;
  void stop_driving(const net::WakeUp& driver) override;
  pollfd sleep_on() override;
  void revoke(const void* owner) override;
  // Ends the lane when a write is half sent, for the rest would come from memory that is no longer
  // the lane's.
  void abandon(const void* owner) override;
  void close(Status why) override;
  Bytes fence() const override;
  Clock::time_point settled_by() override;

  // Renews the lease of writes that are under way, or ends the lane when that fails for so long
  // that none of them can land any more. Returns when to be called again.
  Clock::time_point beat(Clock::time_point now);

  bool on_events(uint32_t events) override;
  net::Load take_load(net::Direction direction) override;
  void resume() override { kick(); }

 private:
  // A request without its answer.
  struct Sent {
    uint64_t serial;
    net::Kind answer;  // what has to come
    uint64_t transfer;
    uint32_t slice;
    uint16_t number;
    uint64_t bytes;
    Attempt* attempt;       // null: nobody counts on the answer
    bool given_up = false;  // a write: its answer settles it
    bool verified = false;
    net::Pieces landing;
    PathOwner::Then then;  // of a question
    std::shared_ptr<Bytes> text;
  };
  // A write that waits for its lease.
  struct Held {
    net::Frame frame;
    Sent sent;
    std::vector<net::WireRange> ranges;
    net::Pieces payload;
  };
  // What has to be told without the lock.
  struct Told {
    PathOwner::Then then;
    Status status;
    std::shared_ptr<Bytes> text;
  };
  // The owner is let go of after the lock, since its end closes the lane.
  struct Turn {
    std::shared_ptr<PathOwner> owner;
    std::unique_lock<std::mutex> lock;
  };

  // Ahead of a driver, which would keep others out for long: the lock is not fair.
  Turn enter();
  // These unlock.
  void tell(Turn& turn);
  void lose(Turn& turn, Status why, bool remote_gone);

  // Without the lock. First over any lane, then over this one.
  void ask_lease(PathOwner& owner, uint64_t time, bool here = false);
  void take_lease(Status status, const Bytes& time, bool here, uint64_t asked);

  // All with the lane locked:
  void push(net::Frame frame, Sent sent, std::span<const net::WireRange> ranges,
            net::Pieces payload, std::shared_ptr<const void> kept = {});
  void watch();
  bool writes_out() const;
  bool gave_up() const;
  void end_all(Status why, bool remote_gone);
  void end_revocable(const void* owner);

  const char* on_frame(const net::Frame& frame, std::span<const net::WireRange> ranges,
                       net::Pieces& landing) override;
  const char* on_payload_end() override;

  net::Loop& loop_;
  const Made made_;
  const std::weak_ptr<PathOwner> owner_;
  net::Loop::Id loop_id_ = 0;

  std::atomic<int> wanted_{0};  // callers that the driver has to let in
  std::mutex mutex_;
  bool lost_ = false;
  Status lost_why_ = Status::kOk;
  const net::WakeUp* driver_ = nullptr;
  uint32_t events_ = 0;
  uint64_t last_serial_ = 0;
  net::Inbox inbox_;
  net::Outbox outbox_;
  std::deque<Sent> sent_;
  LaneLease lease_;
  std::vector<Held> held_;
  std::atomic<Clock::rep> look_every_{Clock::duration(std::chrono::seconds(1)).count()};
  Clock::time_point acknowledged_{};  // then, or later, nothing was unacknowledged
  Clock::time_point busy_since_{};
  Clock::time_point asked_{};  // by look()
  std::vector<Told> told_;
  PathOwner* owner_now_ = nullptr;  // of the turn
  Status answer_ = Status::kOk;     // of the frame that arrives
};

}  // namespace inlay::transfer
