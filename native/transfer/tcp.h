// The transport tcp: lanes to the port of the peer. What serves them is the Server.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "../net/handshake.h"
#include "lane.h"
#include "transport.h"

namespace inlay::transfer {

class Server;

class TcpTransport final : public Transport {
 public:
  explicit TcpTransport(const Site& site) : site_(site) {}

  // Who shuts lanes when peers ask for it.
  void serve(std::shared_ptr<Server> server) { server_ = std::move(server); }

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
                                  uint64_t connection, net::LaneKind kind) const;

  std::string_view name() const override { return "tcp"; }
  Bytes attach(Segment&) override { return {}; }
  bool detach(Segment&, Clock::time_point) override { return true; }
  Bytes offer() override { return {}; }
  Connected connect(const std::shared_ptr<PathOwner>& peer, std::span<const std::byte> offer,
                    Clock::time_point end) override;
  Answer answer(const net::EngineId& from, std::span<const std::byte> question) override;
  void close() override {}

 private:
  const Site site_;
  std::shared_ptr<Server> server_;
};

}  // namespace inlay::transfer
