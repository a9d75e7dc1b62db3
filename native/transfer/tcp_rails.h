// The rails of tcp to one peer: pairs of a local and a remote address, each with its lanes, its
// health and its way back.
//
// A lane that the peer closed is made again. A rail is closed when its link goes down, or when
// nothing of what is sent over it is acknowledged while another rail works; then it is probed.
//
// On the loop's thread, but for the constructor and wait_started().
#pragma once

#include <array>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "../net/dial.h"
#include "../net/links.h"
#include "lane.h"
#include "rail.h"
#include "transport.h"

namespace inlay::transfer {

class Peer;
class TcpTransport;

// An address of this machine that others may reach.
struct RailEnd {
  std::string host;
  int prefix;        // bits of its network
  std::string nic;   // its name
  double bandwidth;  // bytes/s; 0: not known
};
std::vector<RailEnd> rail_ends();

class TcpRails : public std::enable_shared_from_this<TcpRails> {
 public:
  // `first`: the lane that the peer was asked over. `offer`: see TcpTransport::offer().
  TcpRails(net::Loop& loop, const Site& site, TcpTransport& tcp, const std::shared_ptr<Peer>& peer,
           std::shared_ptr<Lane> first, const std::string& offer);

  std::size_t size() const { return rails_.size(); }
  void start(Clock::time_point now);
  // Until all rails are ready or have failed once.
  void wait_started(Clock::time_point end);
  void link_changed(const net::LinkEvent& event);
  Clock::time_point tick(Clock::time_point now);
  bool over() const;
  void close();

 private:
  struct One {
    std::string local;   // host
    std::string remote;  // host:port
    std::string nic;
    double bandwidth;
    Rail health;
    std::array<std::shared_ptr<Lane>, 2> lanes;  // by net::LaneKind
    std::array<std::shared_ptr<net::Dial>, 2> dials;
  };

  void tell(One& rail, RailEvent event);
  void dial_missing(One& rail);
  void dial(One& rail, net::LaneKind kind);
  void dialed(One& rail, net::LaneKind kind, uint64_t connection, net::Dial::Result result);
  void lane_lost(const Path* path);
  bool others_ready(const One& rail) const;
  void watch_lanes();
  // Gives up a peer that nothing comes from. Returns when to be called again.
  Clock::time_point hear(Clock::time_point now);
  void note_started();

  net::Loop& loop_;
  const Site site_;
  TcpTransport& tcp_;
  const std::weak_ptr<Peer> peer_;
  RailConfig config_;
  std::vector<std::unique_ptr<One>> rails_;
  Clock::time_point heard_{};  // from the peer while something was under way; {}: nothing is
  Clock::time_point hear_at_{};

  std::mutex mutex_;
  std::condition_variable started_;
  bool has_started_ = false;
};

}  // namespace inlay::transfer
