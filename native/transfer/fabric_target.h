// The target's side of fabrics: connections by which peers reach memory without our doing. Where
// endpoints have none, a pair of them that know each other's address is one, opened by a question.
//
// A peer that can no longer tell us to fence must not land bytes later. So it writes under a lease:
// it asks for one over a lane, asks again twice a second while writes are out, and returns it when
// all are complete. We close a connection whose lease ends without that, before its provider moves
// another byte. A lease lasts 2 s from the time that *we* told in our last answer that the peer had
// when it asked, so no delay on the way makes it longer; what the peer gave up is settled 2.5 s
// later at the latest. Providers may move the bytes of all connections when they are called for one
// of them or for a port's events (tcp does since libfabric 1.18): so before each call, drop_late().
// What the target is stopped in the middle of, between that look and the call, may land late.
//
// An end without a connection moves nothing while we do not call its provider, which we do as long
// as its initiator has a lease. So there reads need one, too. Nobody tells us when its initiator
// dies: it is closed when 20 s long nothing was asked about it.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "../net/fabric/greeting.h"
#include "../net/loop.h"
#include "fabric_port.h"
#include "fabric_words.h"
#include "transport.h"

namespace inlay::transfer {

class FabricTarget {
 public:
  using Ports = std::vector<std::shared_ptr<FabricPort>>;
  FabricTarget(const Site& site, const net::Nonce& nonce, const Ports& ports)
      : site_(site), nonce_(nonce), ports_(ports) {}

  // Somebody wants to connect; who proves to hold the token, is let in. On the loop's thread.
  void on_request(const std::shared_ptr<FabricPort>& port, const fi_info& info,
                  std::span<const std::byte> greeting);
  Transport::Answer answer(const net::EngineId& from, const FabricQuestion& question);
  // Closes connections whose leases are over, or whose initiators are silent. Of any thread that is
  // about to call a provider; costs a look at the clock while a lease is out or an end without a
  // connection is open, else nothing.
  void drop_late();
  // The same, and lets idle connections sleep. Ten times a second.
  void beat();
  // Whoever had begun to touch a segment where closing it does not end that, touches it no more.
  void evict();
  void close();

 private:
  bool some_may_be_late() const;
  static constexpr uint64_t kNever = ~uint64_t{0};
  class Served;
  // What is known of an initiator.
  struct Initiator {
    std::set<uint64_t> taken;  // numbers of connections, and those fenced before they came
    uint64_t least = 0;        // all below count as taken
    std::map<uint64_t, std::shared_ptr<Served>> served;
  };

  // All locked:
  bool take_number(Initiator& initiator, uint64_t connection);
  void drop_late_now();
  void drop_all_late();
  void drop(const std::shared_ptr<Served>& served);
  void serve(Initiator& initiator, const std::shared_ptr<Served>& served);
  Transport::Answer open(const net::EngineId& from, const FabricQuestion& question);
  Transport::Answer lease(const net::EngineId& from, const FabricQuestion& question);
  Status check_segment(const FabricQuestion& question) const;

  const Site& site_;
  const net::Nonce nonce_;
  const Ports& ports_;
  std::mutex mutex_;
  std::map<net::EngineId, Initiator> initiators_;
  // No connection is late before this time of the target's clock.
  std::atomic<uint64_t> none_late_until_{kNever};
};

}  // namespace inlay::transfer
