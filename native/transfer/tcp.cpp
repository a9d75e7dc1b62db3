#include "tcp.h"

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>

#include "../net/bytes.h"
#include "peer.h"
#include "server.h"

namespace inlay::transfer {

namespace {

// Until it is measured: loopback moves about this.
constexpr Reach kReach{6e9, 15e-6};

TransferFailure handshake_failure(const net::ClientHandshake& handshake,
                                  const std::string& address) {
  const auto range = [](int least, int most) {
    return std::to_string(least) + " to " + std::to_string(most);
  };
  switch (handshake.status()) {
    case Status::kPeerRefused:
      return {Status::kPeerRefused,
              "peer " + address + " holds another token: give both engines the same one",
              {},
              address};
    case Status::kProtocolVersion:
      return {Status::kProtocolVersion,
              "peer " + address + " speaks versions " +
                  range(handshake.target_min(), handshake.target_max()) + ", this engine " +
                  range(net::kMinVersion, net::kMaxVersion) + " of the protocol",
              {},
              address};
    default:
      return {Status::kProtocol,
              "what listens at " + address + " is no Inlay transfer engine",
              {},
              address};
  }
}

}  // namespace

TcpTransport::Dialed TcpTransport::dial(const std::string& address, net::LaneKind kind,
                                        uint64_t connection,
                                        const std::function<bool(const net::EngineId&)>& known,
                                        Clock::time_point end,
                                        const std::function<void()>& interrupted) const {
  net::Descriptor socket = net::connect_to(address, end, interrupted);
  net::Hello hello;
  hello.lane = kind;
  hello.engine = site_.engine;
  hello.connection = connection;
  net::fill_random(hello.nonce);
  net::ClientHandshake handshake(hello, site_.token);
  while (handshake.wanted() > 0) {
    const auto output = handshake.output();
    if (!output.empty() && send(socket.get(), output.data(), output.size(), MSG_NOSIGNAL) !=
                               static_cast<ssize_t>(output.size()))
      throw ClosedAtOnce(address);
    std::vector<std::byte> answer(handshake.wanted());
    for (std::size_t have = 0; have < answer.size();) {
      if (!net::wait_for(socket, POLLIN, end, interrupted))
        throw TransferFailure(Status::kPeerUnreachable,
                              "peer " + address + " accepted the connection but does not answer",
                              {}, address);
      const ssize_t n = recv(socket.get(), answer.data() + have, answer.size() - have, 0);
      if (n > 0) have += static_cast<std::size_t>(n);
      if (n == 0 || (n < 0 && errno != EAGAIN)) throw ClosedAtOnce(address);
    }
    handshake.take(answer);
    if (handshake.status() != Status::kOk) throw handshake_failure(handshake, address);
    // Before our proof, with which the target closes the lanes of earlier connections.
    if (known(handshake.target())) return {{}, handshake.target()};
  }
  return {std::move(socket), handshake.target()};
}

std::shared_ptr<Lane> TcpTransport::make_lane(const std::shared_ptr<PathOwner>& peer,
                                              net::Descriptor socket, uint64_t connection,
                                              net::LaneKind kind) const {
  const Traffic traffic = kind == net::LaneKind::kSmall ? Traffic::kSmall : Traffic::kBulk;
  auto lane = std::make_shared<Lane>(
      site_.loop,
      Lane::Made{std::move(socket), connection, traffic, kReach, "tcp " + peer->peer_address()},
      peer);
  lane->start();
  return lane;
}

Transport::Connected TcpTransport::connect(const std::shared_ptr<PathOwner>& owner,
                                           std::span<const std::byte>, Clock::time_point end) {
  const auto peer = std::static_pointer_cast<Peer>(owner);
  Connected made;
  for (const auto& lane : peer->lanes()) made.paths.push_back(lane);
  const uint64_t connection = peer->next_connection();
  try {
    Dialed dialed = dial(
        peer->address, net::LaneKind::kBulk, connection, [](const auto&) { return false; }, end,
        [] {});
    if (dialed.target != peer->engine) {
      peer->lose(Status::kPeerDied, true);
      return {{}, "the peer restarted while it was connected to"};
    }
    auto lane = make_lane(peer, std::move(dialed.socket), connection, net::LaneKind::kBulk);
    peer->add_lane(lane);
    made.paths.push_back(std::move(lane));
  } catch (const TransferFailure& failure) {
    made.problem = failure.what();
  }
  return made;
}

Transport::Answer TcpTransport::answer(const net::EngineId& from,
                                       std::span<const std::byte> question) {
  if (question.size() != sizeof(uint64_t) || server_ == nullptr) return {Status::kProtocol, {}};
  server_->shut(from, net::load<uint64_t>(question.data()));
  return {};
}

}  // namespace inlay::transfer
