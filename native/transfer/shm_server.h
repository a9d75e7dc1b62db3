// The target's end of shared memory: it hands out descriptors of its memory, and reads the memory
// of initiators that write where they cannot write themselves.
//
// Handlers run on the loop's thread; copies of large pulls on the crew's.
#pragma once

#include <memory>
#include <unordered_map>
#include <vector>

#include "../net/acceptor.h"
#include "../net/control_page.h"
#include "../net/side_channel.h"
#include "copy_queue.h"
#include "shm_messages.h"

namespace inlay::transfer::shm {

class ServedLink;

class ShmServer : public net::Handler, public std::enable_shared_from_this<ShmServer> {
 public:
  ShmServer(const Site& site, net::SideListener listener, net::CopyCrew& crew);
  ~ShmServer() override;

  // Registers with the loop. Once.
  void start();
  // Ends all links; nothing of them reads or writes memory afterwards. On the loop's thread, or
  // after it has stopped.
  void stop();

  // Accepts again after a rest. On the loop's thread.
  void resume() { acceptor_.resume(); }

  net::ControlPage& page() { return page_; }
  const net::SideName& name() const { return name_; }
  const Ticket& ticket() const { return ticket_; }

  // Tells initiators to unmap a segment. On the loop's thread.
  void announce_closed(SegmentMessage closed);
  // Ends the link of this number, if it is that engine's. On the loop's thread.
  void end_link(const net::EngineId& engine, uint64_t connection);

  bool on_events(uint32_t events) override;

 private:
  friend class ServedLink;
  void drop(ServedLink& link);

  const Site& site_;
  net::CopyCrew& crew_;
  net::ControlPage page_;
  net::SideName name_;
  net::Acceptor acceptor_;
  Ticket ticket_;
  uint64_t last_connection_ = 0;
  std::unordered_map<ServedLink*, std::shared_ptr<ServedLink>> links_;
};

}  // namespace inlay::transfer::shm
