#include "tcp.h"

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>

#include "../core/errors.h"
#include "peer.h"
#include "server.h"

namespace inlay::transfer {

namespace {

// Until it is learnt.
constexpr double kLoopbackBandwidth = 6e9;
constexpr double kLinkBandwidth = 1.25e9;
constexpr double kLoopbackBase_s = 15e-6;
constexpr double kLinkBase_s = 100e-6;

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
                                              net::LaneKind kind, double bandwidth) const {
  const Traffic traffic = kind == net::LaneKind::kSmall ? Traffic::kSmall : Traffic::kBulk;
  const std::string local = net::host_of(net::local_address(socket));
  const bool loopback = net::is_loopback(socket);
  if (bandwidth == 0) bandwidth = loopback ? kLoopbackBandwidth : kLinkBandwidth;
  const Reach reach{bandwidth, loopback ? kLoopbackBase_s : kLinkBase_s};
  const std::string name = "tcp " + local + " -> " + net::remote_address(socket);
  auto lane = std::make_shared<Lane>(
      site_.loop, Lane::Made{std::move(socket), connection, traffic, reach, name}, peer);
  lane->start(site_.shares);
  return lane;
}

// The addresses of this engine's port, each "host:port bytes/s\n": all that it listens at.
Bytes TcpTransport::offer() {
  const std::string host = net::host_of(listens_);
  const std::string port = listens_.substr(listens_.rfind(':') + 1);
  std::string text;
  if (host != "0.0.0.0" && host != "::") {
    text = listens_ + " 0\n";
  } else {
    for (const RailEnd& end : rail_ends())
      text += net::with_port(end.host, port) + " " + std::to_string(end.bandwidth) + "\n";
  }
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

Transport::Connected TcpTransport::connect(const std::shared_ptr<PathOwner>& owner,
                                           std::span<const std::byte> offer,
                                           Clock::time_point end) {
  const auto peer = std::static_pointer_cast<Peer>(owner);
  const auto lanes = peer->lanes();
  if (lanes.empty()) return {{}, "the connection was lost"};
  const std::string text(reinterpret_cast<const char*>(offer.data()), offer.size());
  auto rails = std::make_shared<TcpRails>(site_.loop, site_, *this, peer, lanes.front(), text);
  site_.loop.post([this, rails] {
    rails_.push_back(rails);
    if (rails->size() > 1) watch_links();
    rails->start(Clock::now());
  });
  rails->wait_started(end);
  return {};  // the rails add their paths
}

void TcpTransport::watch_links() {
  if (links_ != nullptr) return;
  try {
    links_ = std::make_unique<net::LinkWatch>(site_.loop, [this](const net::LinkEvent& event) {
      for (const auto& rails : std::vector(rails_)) rails->link_changed(event);
    });
  } catch (const ResourceError&) {
    // Where the system does not tell of links, silence does.
  }
}

Clock::time_point TcpTransport::tick(Clock::time_point now) {
  Clock::time_point next = Clock::time_point::max();
  std::erase_if(rails_, [](const auto& rails) { return rails->over(); });
  for (const auto& rails : std::vector(rails_)) next = std::min(next, rails->tick(now));
  return next;
}

void TcpTransport::close() {
  links_ = nullptr;
  for (const auto& rails : rails_) rails->close();
  rails_.clear();
}

Transport::Answer TcpTransport::answer(const net::EngineId& from,
                                       std::span<const std::byte> question) {
  const auto asked = decode_lane_question(question);
  if (!asked || server_ == nullptr) return {Status::kProtocol, {}};
  return server_->answer(from, *asked);
}

}  // namespace inlay::transfer
