// The initiator's end of shared memory.
//
//   segment of the peer     read                        write
//   allocated by it         mapped, copied here         mapped, copied here
//   the same, guarded       mapped, copied here         the peer reads our memory (a pull)
//   foreign to it           process_vm_readv here       the peer reads our memory (a pull)
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "../net/control_page.h"
#include "../net/side_channel.h"
#include "copy_path.h"
#include "shm_memory.h"
#include "shm_messages.h"

namespace inlay::transfer::shm {

class ShmPath final : public CopyPath, public net::Handler {
 public:
  struct Link {
    net::Descriptor socket;
    std::shared_ptr<net::VisitedPage> page;
    net::ProcessMemory memory;
    bool can_read;  // its memory, by us
    bool can_pull;  // our memory, by it
    uint64_t connection;
    int32_t pid;
  };
  // `broken` is called, by the loop, when it ended by itself and its owner was told.
  ShmPath(const std::shared_ptr<PathOwner>& owner, net::CopyCrew& crew, net::Loop& loop, Link link,
          std::function<void()> broken);

  // Registers with the loop. Once.
  void listen();
  bool is_over() const { return over_.load(); }

  std::string_view transport() const override { return kName; }
  std::string name() const override;
  std::optional<Reach> reach(const Segment& local, const RemoteSegment& remote,
                             Op op) const override;
  PostResult post(Attempt& attempt) override;
  bool pump() override;
  pollfd sleep_on() override;
  void revoke(const void* owner) override;
  void abandon(const void* owner) override;
  void close(Status why) override;
  Bytes fence() const override;
  void map(const RemoteSegment& remote, Mapped then) override;

  bool on_events(uint32_t events) override;

 private:
  // What is known of a segment of the peer.
  struct Known {
    uint32_t epoch = 0;
    bool writable = false;
    uint64_t size = 0;
    std::shared_ptr<const RemoteMemory> memory;  // null: asked for, or not to be had
    Status problem = Status::kOk;                // why it is not to be had
    std::vector<Attempt*> parked;                // until the answer
  };
  // A word that the peer reads after the bytes: the memory is those of the write as long as it is
  // there.
  class Stamp {
   public:
    explicit Stamp(uint64_t value) : value_(value) {}
    ~Stamp() { take_back(); }
    void take_back() { value_.store(0); }
    net::ProcessStamp name() const { return {reinterpret_cast<uint64_t>(&value_), value_.load()}; }

   private:
    std::atomic<uint64_t> value_;
  };
  struct Pull {
    Attempt* attempt;
    std::unique_ptr<Stamp> stamp;
    bool given_up = false;
  };

  // Who waits for a segment's memory.
  struct Mapping {
    SegmentName name;
    uint64_t size;
    Mapped then;
  };

  // With the lock held:
  void send(std::span<const std::byte> message);
  PostResult post_pull(Attempt& attempt);
  void ask_for(uint32_t slot, const RemoteSegment& remote);
  void forget(Known& known, Status why);
  void end_parked(const void* owner, Status why);
  std::vector<Mapping> take_mappings(SegmentName name);
  MappedSegment::IsOpen is_open(SegmentName name);

  bool receive();
  void take(net::SideMessage& message);
  void take_memory(const SegmentMessage& answer, const net::Descriptor& descriptor);
  void take_memory(Known& known, const SegmentMessage& answer,
                   const net::Descriptor& descriptor);  // locked
  void take_pulled(const PullMessage& answer);
  void give_up(Pull& pull, Status why);  // locked
  void end();

  net::Loop& loop_;
  Link link_;
  const std::function<void()> broken_;
  net::Loop::Id loop_id_ = 0;
  std::atomic<bool> over_{false};  // the other end is gone
  std::atomic<bool> pulled_{false};

  std::mutex receiving_;
  net::SideMessage message_;  // guarded by it

  // Guarded by mutex_:
  net::SideOutbox outbox_;
  bool sending_ = false;  // the loop tells when the outbox may go on
  std::unordered_map<uint32_t, Known> known_;
  std::vector<Mapping> mappings_;
  uint64_t last_pull_ = 0;
  uint64_t last_stamp_;
  std::unordered_map<uint64_t, Pull> pulls_;
};

}  // namespace inlay::transfer::shm
