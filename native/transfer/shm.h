// Transport shm: memory of other processes of the same host, touched directly.
//
// An engine offers a side channel and a control page. An initiator that may share memory with it
// (same host, user and PID namespace) maps what the engine allocated, reads what it did not, and
// enters a visit on the control page before each piece it copies.
#pragma once

#include <memory>
#include <string>

#include "../net/copy_crew.h"
#include "returns.h"
#include "shm_server.h"
#include "transport.h"

namespace inlay::transfer {

namespace shm {
class ShmPath;
}

class ShmTransport final : public Transport {
 public:
  explicit ShmTransport(Site site);
  ~ShmTransport() override;

  std::string_view name() const override;
  std::string problem() const override { return problem_; }
  // The segment has its slot and epoch.
  Bytes attach(Segment& segment) override;
  bool detach(Segment& segment, Clock::time_point until) override;
  Bytes offer() override;
  Connected connect(const std::shared_ptr<PathOwner>& peer, std::span<const std::byte> offer,
                    Clock::time_point end) override;
  // The question is the number of a link; the answer says that nothing of it lands any more.
  Answer answer(const net::EngineId& from, std::span<const std::byte> question) override;
  Clock::time_point tick(Clock::time_point now) override;
  void close() override;

 private:
  struct Linked {
    std::shared_ptr<shm::ShmPath> path;  // null: there is none
    std::string problem;
    bool gone = false;  // the process or its engine
  };
  bool link_again(const std::shared_ptr<PathOwner>& peer, std::span<const std::byte> offer);
  Linked link(const std::shared_ptr<PathOwner>& peer, std::span<const std::byte> offer,
              Clock::time_point end);

  const Site site_;
  std::string problem_;
  net::CopyCrew crew_;
  std::shared_ptr<shm::ShmServer> server_;  // null where there is a problem
  Returns returns_;
};

}  // namespace inlay::transfer
