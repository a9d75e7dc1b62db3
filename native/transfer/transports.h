// All transports of an engine.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cuda.h"
#include "peer.h"
#include "plugin.h"
#include "tcp.h"
#include "transport.h"

namespace inlay::transfer {

class Transports {
 public:
  // `wanted`: names of those that may move bytes; empty: all that work here. Throws ArgumentError
  // for a name that there is not, TransferFailure(kTransportUnavailable) for one that cannot work
  // and was asked for, by its name or as a plugin without one.
  Transports(const Site& site, const std::vector<std::string>& wanted,
             const std::vector<Plugin>& plugins);

  // Connections and questions go over it, whether or not bytes may.
  TcpTransport& tcp() { return *tcp_; }

  // Throws what an attach throws, and then none is attached.
  void attach(Segment& segment);
  bool detach(Segment& segment, Clock::time_point until);
  // Adds all paths to a peer that this engine and those offers allow.
  void connect(const std::shared_ptr<Peer>& peer, std::span<const std::byte> offers,
               Clock::time_point end);
  // Throw TransferFailure(kTransportUnavailable) where that transport is not used.
  void require(std::string_view name) const;
  CudaTransport& cuda() const;
  // What a peer asks; a question to no transport is for all offers.
  Transport::Answer answer(const net::EngineId& from, std::span<const std::byte> question);
  Clock::time_point tick(Clock::time_point now);
  void close();

  // For people: why a transport is not used; empty for those that are.
  struct Problem {
    std::string transport;
    std::string text;
  };
  // Of all that there are.
  std::vector<Problem> problems() const;

 private:
  void add(std::unique_ptr<Transport> transport, bool required);
  Bytes offers();
  Transport* find(std::string_view name) const;

  std::vector<std::unique_ptr<Transport>> used_;
  std::unique_ptr<TcpTransport> unused_tcp_;
  TcpTransport* tcp_;
  std::vector<Problem> problems_;
};

}  // namespace inlay::transfer
