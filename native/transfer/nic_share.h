// What this engine's lanes may send and fetch over the network cards that it shares with other
// processes; see net/fairness.h for how it is shared.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "../net/fairness.h"
#include "../net/loop.h"
#include "../net/stream.h"

namespace inlay::transfer {

// A connection over a shared card.
class SharedLane {
 public:
  virtual net::Load take_load(net::Direction direction) = 0;
  // Sends, if it is held and may go on. Without locks.
  virtual void resume() = 0;

 protected:
  ~SharedLane() = default;
};

// One card and direction.
class NicShare final : public net::Gate {
 public:
  // Throws what Fairness throws.
  NicShare(net::Loop& loop, const net::FairnessOptions& options)
      : loop_(loop), direction_(options.direction), ledger_(options) {}

  void join(std::weak_ptr<SharedLane> lane);
  // Of any thread, also with the lane locked. Who gets 0 is resumed.
  uint64_t grant(uint64_t wanted) override;
  // On the loop's thread. Beats as long as bytes are under way.
  net::Clock::time_point tick(net::Clock::time_point now);

 private:
  std::vector<std::shared_ptr<SharedLane>> lanes();

  net::Loop& loop_;
  const net::Direction direction_;
  net::Fairness ledger_;
  net::Clock::time_point next_beat_{};
  std::atomic<bool> beats_{false};
  std::atomic<bool> holds_{false};
  std::mutex mutex_;
  std::vector<std::weak_ptr<SharedLane>> lanes_;
};

struct NicShareOptions {
  std::string directory;  // of the ledgers; empty: nothing is shared
  uint32_t weight = 8;
  std::map<std::string, double> bandwidths = {};  // bytes/s by card; learned where missing
};

class NicShares {
 public:
  NicShares(net::Loop& loop, NicShareOptions options);

  // Of the card that a connected socket uses, found by its local address in about 50 us. Null where
  // both ends are this machine's, and where there can be no ledger: then nobody is held.
  NicShare* find(const net::Descriptor& socket, net::Direction direction);
  net::Clock::time_point tick(net::Clock::time_point now);

 private:
  net::Loop& loop_;
  const NicShareOptions options_;
  std::mutex mutex_;
  std::map<std::pair<std::string, net::Direction>, std::unique_ptr<NicShare>> shares_;
};

}  // namespace inlay::transfer
