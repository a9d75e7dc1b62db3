// Bytes between instances. Flows share what leaves an instance and what comes into one max-min
// fairly: a flow gets as much as any other that is held back by the same end, unless it has less to
// send. Rates change when a flow begins, ends or has caught up with what is produced for it.
//
// Cost: flows times ends with flows, at each change.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

namespace inlay::sim {

class Links {
 public:
  using Flow = uint32_t;

  // Returns its number. Bytes per second; 0: it moves nothing; infinite: it is no limit.
  uint16_t add_end(double out_bytes_per_s, double in_bytes_per_s);

  // Nothing is sent yet.
  Flow open(uint16_t source, uint16_t target);
  // So many bytes are there to be sent, besides those that are.
  void put(Flow flow, double bytes);
  // And so many more come each second from now on.
  void produce(Flow flow, double bytes_per_s);
  bool empty(Flow flow) const { return flows_[flow].backlog <= 0.0; }
  void close(Flow flow);

  // When a flow will have nothing left, if nothing changes; infinite if never.
  double next_s();
  // Moves bytes until then, which is not after next_s(). It comes before every change.
  void advance(double now_s);
  // Flows that came to have nothing left.
  std::vector<Flow> take_drained();

  // That left an end so far.
  double sent_bytes(uint16_t source) const { return ends_[2 * std::size_t{source}].moved_bytes; }

 private:
  struct End {
    double bytes_per_s = 0.0;
    double moved_bytes = 0.0;
    double left = 0.0;  // of solve()
    uint32_t flows = 0;
  };
  struct State {
    uint32_t out = 0;  // of `ends_`
    uint32_t in = 0;
    bool open = false;
    bool fixed = false;  // of solve()
    double backlog = 0.0;
    double produced = 0.0;  // per second
    double rate = 0.0;
  };

  void solve();

  std::vector<End> ends_;  // out and in of each
  std::vector<State> flows_;
  std::vector<Flow> open_;
  std::vector<Flow> unused_;
  std::vector<Flow> drained_;
  double now_s_ = 0.0;
  double next_s_ = std::numeric_limits<double>::infinity();
  bool changed_ = false;
};

}  // namespace inlay::sim
