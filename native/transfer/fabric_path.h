// The initiator's end of a fabric connection: posts reads and writes of slices to a provider.
//
// Any number of threads pump it; what they do is locked. To take back what a provider has, its
// endpoint has to be closed, which ends the path; the transport connects again.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "fabric_lease.h"
#include "fabric_link.h"
#include "fabric_pieces.h"
#include "transport.h"

namespace inlay::transfer {

class FabricPath final : public Path,
                         public net::Handler,
                         public FabricConnection,
                         public std::enable_shared_from_this<FabricPath>,
                         private net::fabric::EndpointSink {
 public:
  enum class State : uint8_t { kConnecting, kReady, kOver, kClosed };  // closed: by its owner
  // Told once when it becomes ready, once when it is over or closed; without the path's lock.
  using Changed = std::function<void(FabricPath&, State)>;

  // Throws TransferFailure(kTransportUnavailable).
  FabricPath(const Site& site, FabricMemory& memory, std::shared_ptr<const FabricRail> rail,
             uint64_t connection, Changed changed);

  // Begins to connect; when that fails at once, it is over at once.
  void start();
  // Its owner has it, and hears of its end; false when it is over already.
  bool hand_over();
  // Its link is gone, which the provider takes seconds to notice.
  void link_down() { end(Status::kPeerUnreachable); }
  // Renews and returns the lease; ends a path that is not joined or stalls. Ten times a second.
  void beat(Clock::time_point now);

  std::string_view transport() const override { return "fabric"; }
  std::string name() const override;
  std::optional<Reach> reach(const Segment& local, const RemoteSegment& remote,
                             Op op) const override;
  PostResult post(Attempt& attempt) override;
  void kick() override;
  bool pump() override;
  bool try_drive(const net::WakeUp& driver) override;
  void stop_driving(const net::WakeUp& driver) override;
  pollfd sleep_on() override { return {link_->endpoint().descriptor().get(), POLLIN, 0}; }
  void revoke(const void* owner) override { take_back(owner, true); }
  void abandon(const void* owner) override { take_back(owner, false); }
  void close(Status why) override { end(why, State::kClosed); }
  Bytes fence() const override;

  bool on_events(uint32_t events) override;
  void on_connected(std::span<const std::byte> greeting) override;
  void on_ended() override;

 private:
  // An attempt that is under way.
  struct Work {
    uint64_t id;
    Attempt* attempt;
    bool is_read;
    void* descriptor;  // of the local memory
    std::vector<FabricPiece> pieces;
    std::size_t next = 0;      // of pieces, to post
    uint64_t skip = 0;         // bytes of that piece already posted
    uint32_t outstanding = 0;  // posted, not complete
    bool begun = false;
    bool unconfirmed = false;  // a confirming read has to follow
    bool asked = false;        // waits for the answer whether the segment is there
    bool taken_back = false;   // by revoke() or abandon()
  };

  bool connected() const { return rail_->port->domain.connected(); }
  // Operations that the target has to know of.
  bool needs_lease(const Work& work) const { return !work.is_read || !connected(); }

  // All locked:
  PostResult refuse();
  void enqueue(Work& work);
  void issue();
  net::fabric::Endpoint::Post issue_next(Work& work);
  void finish(std::list<Work>::iterator work, Status status, bool settled);
  bool take_completions();  // true: there may be more without the descriptor telling
  void ask(FabricQuestion question, uint64_t about);
  bool is_stalled(Clock::time_point now) const;
  bool is_in_doubt(Clock::time_point now) const;

  void on_completion(void* owner, int error) override;
  // Without the lock:
  void send_questions();
  void on_answer(FabricAsk ask, uint64_t about, Status status, const Bytes& answer);
  void on_lease(uint64_t lease, Status status, const Bytes& answer);
  void on_segment(uint64_t work, Status status);
  void take_back(const void* owner, bool reads);
  void settle_state();
  void end(Status why, State how = State::kOver);

  const Site& site_;
  FabricMemory& memory_;
  const std::shared_ptr<const FabricRail> rail_;
  const net::fabric::Meeting meeting_;
  const Changed changed_;
  const Clock::time_point started_ = Clock::now();

  mutable std::mutex mutex_;
  State state_ = State::kConnecting;
  Status over_why_ = Status::kOk;
  bool owned_ = false;
  bool broken_ = false;  // to be ended as soon as the lock is free
  bool tell_again_ = false;
  int drivers_ = 0;
  const std::unique_ptr<FabricLink> link_;
  net::Loop::Id loop_id_ = 0;
  uint64_t last_work_ = 0;
  std::list<Work> works_;
  std::deque<Work*> queue_;  // with pieces to post
  FabricLease lease_;
  uint64_t posted_bytes_ = 0;  // of works that are begun
  Clock::time_point last_completion_{};
  Clock::time_point turned_away_{};  // since when the provider takes nothing, if it does not
  Clock::time_point last_question_{};
  struct Question {
    FabricQuestion question;
    uint64_t about;  // the work or lease
  };
  std::vector<Question> questions_;  // to send
  PathOwner* owner_ = nullptr;       // while it is told with the lock held
};

}  // namespace inlay::transfer
