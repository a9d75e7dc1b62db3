// Shares of one network port between the processes of a user, by weight.
//
// The processes of one NIC and direction map one small file, the ledger. While a process moves
// bytes there it writes, every 20 ms, its weight, how fast its bytes move and whether it wants more
// into a line of its own, and computes from all fresh lines what it may move until the next time.
// Nobody waits for anybody, and nothing has to be cleaned up: a line that is not written for 45 ms
// counts no more, whether its process was killed, stopped, or has nothing to do.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "socket.h"

namespace inlay::net {

inline constexpr std::chrono::milliseconds kBeat{20};
inline constexpr std::chrono::milliseconds kStale{45};

enum class Direction { kSend, kReceive };

struct FairnessOptions {
  std::string directory;  // mode 0700, of this user
  std::string nic;
  Direction direction;
  uint32_t weight = 8;  // 1 to 1024
  // Bytes/s that the port carries. 0: learned, as the most that all have moved together within a
  // second while somebody wanted more, or the card was nearly full, and 3 % to see whether more
  // goes.
  double capacity = 0;
};

// Another process's line: how much it can use, in bytes/s; infinity where it wants more than it
// has.
struct Claim {
  double weight;
  double demand;
};

// What is left of `capacity` for one who can use any amount, when nobody gets more than he can use
// and the rest is split by weight (water-filling).
double share_of(double capacity, double weight, std::vector<Claim> others);

// The most that was moved together over the last second of busy beats.
class CapacityEstimate {
 public:
  // `rate`: of all processes together in the last beat; `busy`: somebody wanted more.
  void add(double rate, bool busy, Clock::duration elapsed);
  // Bytes/s; 0 as long as nothing is known.
  double value() const;

 private:
  static constexpr std::size_t kMemory = 50;  // a second of beats
  static constexpr std::size_t kWarmUp = 10;  // what was smoothed over fewer is too low
  std::vector<double> busy_rates_;            // a ring
  std::size_t next_ = 0;
  double smooth_ = 0;
};

// This process's part in one ledger. May be called by any thread; a forked child makes its own.
class Fairness {
 public:
  // Throws ArgumentError for options that cannot be, and for a ledger that others could write;
  // ResourceError where the system refuses the file.
  explicit Fairness(const FairnessOptions& options);
  Fairness(const Fairness&) = delete;
  Fairness& operator=(const Fairness&) = delete;
  ~Fairness();

  // How many of `wanted` bytes may be given to the network now. 0: ask again at next(). All of
  // them where nobody else has moved bytes on the port for a second, or its capacity is not known.
  // About 20 ns; a few us after a rest.
  uint64_t grant(uint64_t wanted, Clock::time_point now);
  Clock::time_point next() const;
  // So many granted bytes have arrived, or were given up.
  void moved(uint64_t bytes) { moved_.fetch_add(bytes, std::memory_order_relaxed); }
  // To be called each kBeat while bytes are on their way or wait: a full socket asks for no grants.
  // `queued`: all that was submitted and has not moved.
  void beat(uint64_t queued, Clock::time_point now);

  // Bytes/s, for metrics. 0: not limited; not known.
  double share() const { return share_.load(std::memory_order_relaxed); }
  double capacity() const { return capacity_.load(std::memory_order_relaxed); }

 private:
  static constexpr double kMinBurst = 65536;

  struct Line;
  struct Ledger;

  void refresh(uint64_t wanted, Clock::time_point now);
  bool hold_line(Clock::time_point now);
  // Whether one who was refused nothing demands all: he has a queue and little of his share on a
  // full card, and either another's packets starve him or his peer is slow. `queues`: bytes wait.
  bool claims(bool queues, Clock::time_point now);
  void refill(Clock::time_point now);

  const FairnessOptions options_;
  const uint64_t owner_;
  const unsigned generation_;
  std::unique_ptr<Ledger, void (*)(Ledger*)> ledger_;

  std::atomic<uint64_t> moved_{0};
  std::atomic<double> share_{0};
  std::atomic<double> capacity_{0};

  mutable std::mutex mutex_;
  Line* line_ = nullptr;
  Clock::time_point last_beat_{};
  Clock::time_point last_refill_{};
  Clock::time_point last_company_{};
  uint64_t queued_ = 0;
  uint64_t moved_before_ = 0;
  bool refused_ = false;
  bool resumed_by_grant_ = false;
  double rate_ = 0;
  bool card_is_full_ = false;  // at the last beat
  double claim_rate_ = 0;      // when the claim began
  Clock::time_point claim_end_{};
  Clock::time_point next_claim_{};
  Clock::duration claim_rest_ = std::chrono::seconds(2);
  double tokens_ = kMinBurst;  // below 0 after a grant that was larger
  CapacityEstimate learned_;
};

}  // namespace inlay::net
