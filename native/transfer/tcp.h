// The transport tcp: lanes to the port of the peer. What serves them is the Server.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "../net/handshake.h"
#include "../net/links.h"
#include "lane.h"
#include "tcp_rails.h"
#include "transport.h"

namespace inlay::transfer {

class Server;

class TcpTransport final : public Transport {
 public:
  explicit TcpTransport(const Site& site) : site_(site) {}

  // Who shuts lanes when peers ask for it, and where it listens.
  void serve(std::shared_ptr<Server> server, std::string address) {
    server_ = std::move(server);
    listens_ = std::move(address);
  }

  struct Dialed {
    net::Descriptor socket;
    net::EngineId target{};
  };
  // A proven connection. Throws TransferFailure: kPeerUnreachable, kPeerRefused, kProtocol,
  // kProtocolVersion; ClosedAtOnce where another try may help. Gives up without a socket when
  // `known` says that this engine is connected already. `interrupted` is asked each 100 ms.
  Dialed dial(const std::string& address, net::LaneKind kind, uint64_t connection,
              const std::function<bool(const net::EngineId&)>& known, Clock::time_point end,
              const std::function<void()>& interrupted) const;
  class ClosedAtOnce : public TransferFailure {
   public:
    explicit ClosedAtOnce(const std::string& address)
        : TransferFailure(Status::kPeerUnreachable,
                          "peer " + address + " closed the connection before it was made", {},
                          address) {}
  };
  std::shared_ptr<Lane> make_lane(const std::shared_ptr<PathOwner>& peer, net::Descriptor socket,
                                  uint64_t connection, net::LaneKind kind,
                                  double bandwidth = 0) const;

  std::string_view name() const override { return "tcp"; }
  Bytes attach(Segment&) override { return {}; }
  bool detach(Segment&, Clock::time_point) override { return true; }
  Bytes offer() override;
  Connected connect(const std::shared_ptr<PathOwner>& peer, std::span<const std::byte> offer,
                    Clock::time_point end) override;
  Answer answer(const net::EngineId& from, std::span<const std::byte> question) override;
  Clock::time_point tick(Clock::time_point now) override;
  void close() override;

 private:
  void watch_links();

  const Site site_;
  std::shared_ptr<Server> server_;
  std::string listens_;
  // On the loop's thread:
  std::vector<std::shared_ptr<TcpRails>> rails_;
  std::unique_ptr<net::LinkWatch> links_;
};

}  // namespace inlay::transfer
