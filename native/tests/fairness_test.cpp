// The ledger of shares, by a clock and a link of the test.
#include "../net/fairness.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>
#include <random>
#include <string>
#include <utility>

#include "../core/errors.h"
#include "check.h"

namespace {

using namespace inlay::net;
using namespace std::chrono_literals;
namespace fs = std::filesystem;

class Directory {
 public:
  Directory() {
    std::string name = fs::temp_directory_path() / "inlay-fairness-XXXXXX";
    CHECK(mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  ~Directory() { fs::remove_all(path_); }
  Directory(const Directory&) = delete;
  Directory& operator=(const Directory&) = delete;
  FairnessOptions options(uint32_t weight, double capacity = 0) const {
    return {path_, "eth0", Direction::kSend, weight, capacity};
  }
  // The ledger in it.
  fs::path file() const { return fs::directory_iterator(path_)->path(); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

bool near(double value, double wanted, double tolerance) {
  const bool fits = std::abs(value / wanted - 1) <= tolerance;
  if (!fits) std::fprintf(stderr, "%g instead of %g\n", value, wanted);
  return fits;
}

void shares_fill_up() {
  const double any = std::numeric_limits<double>::infinity();
  CHECK(near(share_of(90, 8, {{1, any}}), 80, 1e-9));
  CHECK(near(share_of(90, 1, {{8, any}}), 10, 1e-9));
  CHECK(near(share_of(90, 1, {{8, 30}}), 60, 1e-9));
  CHECK(near(share_of(90, 1, {{8, 85}}), 10, 1e-9));  // 80 of the 85
  CHECK(near(share_of(100, 1, {{1, 10}, {1, any}, {2, 20}}), 35, 1e-9));
  CHECK(near(share_of(100, 1, {}), 100, 1e-9));
}

enum class Link { kFifo, kEqual };  // who sends more gets more; or each flow the same, as with TCP

// Processes that send over one link, each tick a millisecond of no real time.
class Simulation {
 public:
  struct Process {
    std::optional<Fairness> fairness;
    double offered;          // bytes/s it has to send; infinity for more than goes
    double accepted = 1e18;  // bytes/s that its peer takes
    double peer_takes = 0;
    double waiting = 0;
    double in_flight = 0;
    double uncounted = 0;  // arrived since its last beat
    double arrived = 0;
    int stopped_ms = 0;  // so long it gets no processor; what it has in flight goes on
  };

  Simulation(const Directory& directory, Link link, double rate, double configured = 0)
      : directory_(directory), link_(link), rate(rate), configured_(configured) {}

  Process& add(uint32_t weight, double offered = std::numeric_limits<double>::infinity()) {
    Process& process = processes_.emplace_back();
    process.fairness.emplace(directory_.options(weight, configured_));
    process.offered = offered;
    return process;
  }
  // Each process's bytes/s.
  std::vector<double> run(double seconds) {
    for (Process& process : processes_) process.arrived = 0;
    for (int tick = 0; tick < seconds * 1000; ++tick) step();
    std::vector<double> rates;
    for (const Process& process : processes_) rates.push_back(process.arrived / seconds);
    return rates;
  }

 private:
  void step() {
    now_ += 1ms + std::chrono::microseconds(random_() % 50);
    for (Process& process : processes_) {
      if (!process.fairness || process.stopped_ms-- > 0) continue;
      process.stopped_ms = 0;
      process.waiting = std::min(process.waiting + process.offered * 0.001, 64e6);
      const double window = std::max(262144.0, rate * window_s);
      process.peer_takes = std::min(process.peer_takes + process.accepted * 0.001, window);
      while (process.waiting > 0 && process.in_flight < window && process.peer_takes > 0) {
        const auto wanted = static_cast<uint64_t>(std::min(process.waiting, 65536.0)) + 1;
        const auto granted = static_cast<double>(process.fairness->grant(wanted, now_));
        if (granted == 0) {
          CHECK(process.fairness->next() <= now_ + kBeat);
          break;
        }
        process.waiting -= std::min(granted, process.waiting);
        process.in_flight += granted;
        process.peer_takes -= granted;
        queue_.push_back({&process, granted});
      }
      process.fairness->moved(static_cast<uint64_t>(std::exchange(process.uncounted, 0)));
      if (process.waiting > 0 || process.in_flight > 0)
        process.fairness->beat(static_cast<uint64_t>(process.waiting + process.in_flight), now_);
    }
    const double noise = 0.8 + 0.4 * static_cast<double>(random_() % 1000) / 1000;
    if (link_ == Link::kFifo)
      serve_queue(rate * 0.001 * noise);
    else
      serve_equally(rate * 0.001 * noise);
  }
  void arrive(Process& process, double bytes) {
    process.in_flight -= bytes;
    process.arrived += bytes;
    process.uncounted += bytes;
  }
  void serve_queue(double budget) {
    while (budget > 0 && !queue_.empty()) {
      auto& [process, left] = queue_.front();
      const double bytes = std::min(budget, left);
      arrive(*process, bytes);
      budget -= bytes;
      left -= bytes;
      if (left < 1) queue_.pop_front();
    }
  }
  void serve_equally(double budget) {
    queue_.clear();
    for (int round = 0; round < 8; ++round) {
      std::vector<Process*> busy;
      for (Process& process : processes_)
        if (process.in_flight >= 1) busy.push_back(&process);
      if (busy.empty()) return;
      const double each = budget / static_cast<double>(busy.size());
      for (Process* process : busy) {
        const double bytes = std::min(each, process->in_flight);
        arrive(*process, bytes);
        budget -= bytes;
      }
    }
  }

  const Directory& directory_;
  const Link link_;

 public:
  double rate;
  double window_s = 0.010;  // what a path has in flight

 private:
  const double configured_;
  std::deque<Process> processes_;
  std::deque<std::pair<Process*, double>> queue_;
  Clock::time_point now_{1h};
  std::minstd_rand random_{7};
};

void shares_follow_weights(Link link, double rate, double configured,
                           const std::vector<uint32_t>& weights) {
  const Directory directory;
  Simulation simulation(directory, link, rate, configured);
  double sum = 0;
  for (const uint32_t weight : weights) {
    simulation.add(weight);
    sum += weight;
  }
  (void)simulation.run(1);
  const std::vector<double> rates = simulation.run(2);
  double total = 0;
  for (std::size_t i = 0; i < rates.size(); ++i) {
    if (!near(rates[i], rate * weights[i] / sum, 0.1)) {
      std::fprintf(stderr, "link %d, rate %g, configured %g, process %zu of %zu\n",
                   static_cast<int>(link), rate, configured, i, weights.size());
      std::exit(1);
    }
    total += rates[i];
  }
  CHECK(near(total, rate, 0.03));
}

void alone_there_is_no_bucket() {
  const Directory directory;
  Fairness fairness(directory.options(1, 1000));  // nobody could move at that rate
  const Clock::time_point now{1h};
  for (int i = 0; i < 1000; ++i) CHECK(fairness.grant(1 << 30, now + i * 1ms) == 1 << 30);
  CHECK(fairness.share() == 0);
  CHECK(fairness.grant(0, now) == 0);
}

void a_killed_process_leaves_its_share() {
  for (const Link link : {Link::kFifo, Link::kEqual}) {
    const Directory directory;
    Simulation simulation(directory, link, 100e6);
    Simulation::Process& heavy = simulation.add(8);
    Simulation::Process& light = simulation.add(1);
    (void)simulation.run(2);
    CHECK(light.fairness->share() > 0);
    // Killed: its line stays as it is, and the destructor that would free it does not run.
    heavy.offered = heavy.waiting = heavy.in_flight = 0;
    (void)simulation.run(0.070);
    CHECK(light.fairness->share() > 90e6);  // all that the link carries
    CHECK(near(simulation.run(0.2)[1], 100e6, 0.05));
    (void)simulation.run(1);
    CHECK(light.fairness->share() == 0);  // nobody comes back: no bucket any more
  }
}

void what_one_does_not_use_is_the_others() {
  for (const Link link : {Link::kFifo, Link::kEqual}) {
    const Directory directory;
    Simulation simulation(directory, link, 100e6);
    simulation.add(8, 20e6);
    simulation.add(1);
    (void)simulation.run(3);
    const std::vector<double> rates = simulation.run(2);
    CHECK(near(rates[0], 20e6, 0.05));
    CHECK(near(rates[1], 80e6, 0.1));
  }
}

// The heavy one has much to send to a peer that takes little.
void a_slow_peer_leaves_the_rest() {
  for (const Link link : {Link::kFifo, Link::kEqual}) {
    const Directory directory;
    Simulation simulation(directory, link, 100e6, 100e6);
    simulation.add(8).accepted = 10e6;
    simulation.add(1);
    (void)simulation.run(1);
    const std::vector<double> rates = simulation.run(2);
    CHECK(near(rates[0], 10e6, 0.05));
    CHECK(near(rates[1], 90e6, 0.05));
  }
}

void a_link_that_changes_is_learned() {
  const Directory directory;
  Simulation simulation(directory, Link::kFifo, 200e6);
  simulation.add(3);
  simulation.add(1);
  for (const double rate : {200e6, 50e6, 100e6}) {
    simulation.rate = rate;
    (void)simulation.run(3);
    const std::vector<double> rates = simulation.run(1);
    CHECK(near(rates[0], 0.75 * rate, 0.1));
    CHECK(near(rates[1], 0.25 * rate, 0.1));
  }
}

// On a busy machine a process waits for a processor at times, and what its socket holds goes on.
void shares_outlast_waits_for_a_processor() {
  for (const Link link : {Link::kFifo, Link::kEqual}) {
    const Directory directory;
    Simulation simulation(directory, link, 25e6);
    simulation.window_s = 0.030;
    Simulation::Process& heavy = simulation.add(8);
    Simulation::Process& light = simulation.add(1);
    (void)simulation.run(1);
    double heavy_rate = 0;
    double light_rate = 0;
    for (int turn = 0; turn < 20; ++turn) {
      (turn % 2 == 0 ? heavy : light).stopped_ms = 60;
      const std::vector<double> rates = simulation.run(0.25);
      heavy_rate += rates[0] / 20;
      light_rate += rates[1] / 20;
      CHECK(heavy.fairness->capacity() < 1.1 * 25e6);
    }
    // Of 500 ms the heavy one waits 60 itself, in which it is not the other's to fill all sockets.
    CHECK(near(heavy_rate / (heavy_rate + light_rate), 8.0 / 9, 0.1));
    CHECK(heavy_rate + light_rate > 0.9 * 25e6);
  }
}

// Who joins a card that another one fills gets a few per cent from TCP, is refused nothing, and
// must not be taken for one who has a slow peer.
void who_is_starved_gets_his_share() {
  for (const Link link : {Link::kFifo, Link::kEqual}) {
    const Directory directory;
    Simulation simulation(directory, link, 25e6);
    simulation.add(1);
    (void)simulation.run(1);
    Simulation::Process& heavy = simulation.add(8);
    heavy.accepted = 0.03 * 25e6;
    (void)simulation.run(0.3);
    const auto run = [&](int turns) {
      double heavy_rate = 0;
      double light_rate = 0;
      for (int turn = 0; turn < turns; ++turn) {
        const std::vector<double> rates = simulation.run(0.02);
        heavy.accepted = rates[0] > 0.7 * 25e6 ? 0.03 * 25e6 : std::max(2 * rates[1], 1e6);
        heavy_rate += rates[1];
        light_rate += rates[0];
      }
      return heavy_rate / (heavy_rate + light_rate);
    };
    (void)run(100);
    CHECK(near(run(100), 8.0 / 9, 0.1));
  }
}

void a_pause_teaches_nothing() {
  CapacityEstimate estimate;
  CHECK(estimate.value() == 0);
  for (int i = 0; i < 100; ++i) estimate.add(1e9, true, kBeat);
  for (int i = 0; i < 1000; ++i) estimate.add(1e6, false, kBeat);
  CHECK(near(estimate.value(), 1.03e9, 0.001));
  for (int i = 0; i < 100; ++i) estimate.add(1e8, true, kBeat);
  CHECK(near(estimate.value(), 1.03e8, 0.001));
  for (int i = 0; i < 100; ++i) estimate.add(5e8, false, kBeat);  // more went: more can go
  CHECK(estimate.value() > 5e8);
}

// On a card that carries a little less than believed nobody is refused anything: the card holds
// all.
void too_high_a_capacity_is_unlearned() {
  CapacityEstimate estimate;
  for (int i = 0; i < 100; ++i) estimate.add(1.2e8, true, kBeat);
  for (int i = 0; i < 100; ++i) estimate.add(1e8, false, kBeat);
  CHECK(near(estimate.value(), 1.03e8, 0.001));
}

void lines_run_out_and_come_back() {
  const Directory directory;
  Clock::time_point now{1h};
  std::deque<Fairness> many;
  for (int i = 0; i < 64; ++i) {
    many.emplace_back(directory.options(1, 64e6));
    CHECK(many.back().grant(1 << 20, now) > 0);
  }
  Fairness last(directory.options(1, 64e6));
  CHECK(last.grant(1 << 20, now) == 1 << 20 && last.share() == 0);  // no line, not limited
  now += kBeat;
  many[5].beat(1 << 20, now);
  CHECK(near(many[5].share(), 1e6, 0.01));
  now += 1100ms;  // all went silent: their lines may be taken
  (void)many[0].grant(1 << 20, now);
  (void)last.grant(1 << 20, now);
  CHECK(last.share() > 0);
  // Who lost his takes another.
  for (Fairness& fairness : many) fairness.beat(1 << 20, now + kBeat);
  last.beat(1 << 20, now + kBeat);
  CHECK(last.grant(1 << 20, now + kBeat) > 0);
}

void ledgers_that_cannot_be() {
  const auto refused = [](const FairnessOptions& options) {
    try {
      const Fairness fairness(options);
      return false;
    } catch (const inlay::ArgumentError& error) {
      return std::string(error.what()).find("got") != std::string::npos ||
             std::string(error.what()).find("remove it") != std::string::npos;
    }
  };
  const Directory directory;
  CHECK(refused(directory.options(0)));
  CHECK(refused(directory.options(1025)));
  CHECK(refused(directory.options(1, -1)));
  CHECK(refused(directory.options(1, std::nan(""))));
  CHECK(refused({directory.path(), "", Direction::kSend, 1, 0}));
  CHECK(refused({directory.path(), "../token", Direction::kSend, 1, 0}));
  {
    const Fairness fairness(directory.options(1));
  }
  const fs::path file = directory.file();
  struct stat found{};
  CHECK(stat(file.c_str(), &found) == 0 && (found.st_mode & 0777) == 0600);
  CHECK(chmod(file.c_str(), 0640) == 0 && refused(directory.options(1)));
  CHECK(chmod(file.c_str(), 0600) == 0 && !refused(directory.options(1)));
  std::fstream(file, std::ios::in | std::ios::out) << "another version";
  CHECK(refused(directory.options(1)));
  fs::remove(file);
  fs::create_symlink("elsewhere", file);
  try {
    const Fairness fairness(directory.options(1));
    CHECK(false);
  } catch (const inlay::ResourceError& error) {
    CHECK(std::string(error.what()).find(file) != std::string::npos);
  }
  CHECK(!fs::exists(directory.path() + "/elsewhere"));
}

// Whatever a damaged ledger holds, its lines are old or written anew.
void garbage_in_the_lines() {
  const Directory directory;
  {
    const Fairness fairness(directory.options(1));
  }
  std::mt19937_64 random(11);
  for (int round = 0; round < 20; ++round) {
    std::fstream ledger(directory.file(), std::ios::in | std::ios::out | std::ios::binary);
    ledger.seekp(64);
    const Clock::time_point start{1h};
    for (int i = 0; i < 64 * 8; ++i) {
      uint64_t value = random();
      // The second field of a line is its beat: half of them are fresh.
      if (i % 16 == 1) value = static_cast<uint64_t>(start.time_since_epoch().count());
      ledger.write(reinterpret_cast<const char*>(&value), sizeof(value));
    }
    ledger.close();
    Fairness fairness(directory.options(1, 1e9));
    Fairness learner(directory.options(1));
    Clock::time_point now = start;
    for (int i = 0; i < 2000; ++i) {
      now += 1ms;
      for (Fairness* each : {&fairness, &learner}) {
        each->beat(65536, now);
        each->moved(each->grant(65536, now));
        CHECK(each->next() <= now + kBeat);
        CHECK(each->share() >= 0 && each->capacity() < 1.1e15);
      }
    }
    CHECK(fairness.share() > 4e8);
    CHECK(learner.capacity() < 2e9);  // what it made of them is forgotten
  }
}

}  // namespace

int main() {
  shares_fill_up();
  for (const Link link : {Link::kFifo, Link::kEqual})
    for (const double rate : {50e6, 1e9})
      for (const double configured : {0.0, rate})
        for (const auto& weights : std::vector<std::vector<uint32_t>>{{1, 1}, {8, 1}, {8, 4, 1}})
          shares_follow_weights(link, rate, configured, weights);
  alone_there_is_no_bucket();
  a_killed_process_leaves_its_share();
  what_one_does_not_use_is_the_others();
  a_slow_peer_leaves_the_rest();
  a_link_that_changes_is_learned();
  shares_outlast_waits_for_a_processor();
  who_is_starved_gets_his_share();
  a_pause_teaches_nothing();
  too_high_a_capacity_is_unlearned();
  lines_run_out_and_come_back();
  ledgers_that_cannot_be();
  garbage_in_the_lines();
}
