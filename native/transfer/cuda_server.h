// The owner's end of device memory that other processes map: it hands out handles and waits, before
// memory may go, until everybody who has one has let go of it.
//
// Handlers run on the loop's thread. A process that is killed holds its segments until the system
// has taken it apart, for until then its copies may run.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "../net/acceptor.h"
#include "../net/cuda/device.h"
#include "../net/side_channel.h"
#include "cuda_messages.h"
#include "transport.h"

namespace inlay::transfer {

class CudaServer final : public net::Handler, public std::enable_shared_from_this<CudaServer> {
 public:
  CudaServer(const Site& site, net::SideListener listener);
  ~CudaServer() override;

  void start();
  // After the loop has stopped: asks for what is held, waits a second for it, and ends all links.
  void stop();

  const net::SideName& name() const { return name_; }
  // Accepts again after a rest. On the loop's thread.
  void resume() { acceptor_.resume(); }

  const ipc::Ticket& ticket() const { return ticket_; }

  void offer(const Segment& segment, const net::cuda::Device& device,
             const net::cuda::Device::Shared& shared);
  // No more of it. False: somebody still held it by then. Not on the loop's thread.
  bool withdraw(const Segment& segment, Clock::time_point until);

  bool on_events(uint32_t events) override;

 private:
  class Link;
  struct Offered {
    uint32_t epoch;
    ipc::OpenedMessage opened;
  };
  struct Holder {
    const Link* link;  // null: it hung up
    net::ProcessId process;
    uint32_t slot;
    uint32_t epoch;
  };

  void drop(Link& link);
  ipc::OpenedMessage open(const Link& link, const ipc::SegmentMessage& asked);
  void release(const Link& link, const std::function<bool(const Holder&)>& which);
  void announce(uint32_t slot, uint32_t epoch);
  void forget_dead();  // with the lock held

  const Site site_;
  net::SideName name_;
  net::Acceptor acceptor_;
  ipc::Ticket ticket_;
  std::unordered_map<Link*, std::shared_ptr<Link>> links_;  // of the loop's thread

  std::mutex mutex_;
  std::condition_variable released_;
  std::unordered_map<uint32_t, Offered> offered_;  // by slot
  std::vector<Holder> holders_;
};

}  // namespace inlay::transfer
