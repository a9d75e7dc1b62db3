// One initiator's side channel, from accept to its end.
#pragma once

#include <optional>

#include "shm_memory.h"
#include "shm_server.h"

namespace inlay::transfer::shm {

class ServedLink final : public net::Handler, public CopyQueue {
 public:
  ServedLink(ShmServer& server, net::CopyCrew& crew, net::Descriptor socket, uint64_t connection);

  bool on_events(uint32_t events) override;

 private:
  friend class ShmServer;

  // A write that this end executes. It reads, since that is how the bytes move.
  struct Pull {
    std::shared_ptr<SegmentUse> use;
    std::shared_ptr<RemoteSegment> remote;
    Request request;
    Attempt attempt;
  };

  bool take(net::SideMessage& message);  // false: it is no message of ours
  bool take_hello(const Hello& hello);
  void take_map(const SegmentMessage& asked);
  bool take_pull(const PullMessage& asked, uint64_t grant, std::span<const std::byte> ranges);
  Status check(Pull& pull, const PullMessage& asked) const;
  void copied(Attempt& attempt, Status status) override;
  // With the lock held:
  void send(std::span<const std::byte> message,
            std::shared_ptr<const net::Descriptor> descriptor = nullptr);
  void answer_pull(uint64_t id, Status status);
  void end();  // waits for copies that are under way

  ShmServer& server_;
  const uint64_t connection_;
  net::Descriptor socket_;
  net::Loop::Id loop_id_ = 0;
  bool greeted_ = false;
  net::EngineId engine_{};
  std::optional<net::ProcessMemory> initiator_;  // none: this end cannot read it
  net::SideMessage message_;

  // Guarded by mutex_:
  net::SideOutbox outbox_;
  bool sending_ = false;
  std::unordered_map<uint64_t, std::unique_ptr<Pull>> pulls_;
};

}  // namespace inlay::transfer::shm
