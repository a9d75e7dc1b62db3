// The ledger of shares between threads and between processes, one of which is killed.
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <filesystem>
#include <string>
#include <thread>

#include "../net/fairness.h"
#include "check.h"

namespace {

using namespace inlay::net;
using namespace std::chrono_literals;
using Seconds = std::chrono::duration<double>;

class Directory {
 public:
  Directory() {
    path_ = std::filesystem::temp_directory_path() / "inlay-fairness-XXXXXX";
    CHECK(mkdtemp(path_.data()) != nullptr);
  }
  ~Directory() { std::filesystem::remove_all(path_); }
  Directory(const Directory&) = delete;
  Directory& operator=(const Directory&) = delete;
  FairnessOptions options(uint32_t weight, double capacity = 0) const {
    return {path_, "eth0", Direction::kSend, weight, capacity};
  }

 private:
  std::string path_;
};

void threads_share_one() {
  const Directory directory;
  Fairness other(directory.options(1, 1e9));
  Fairness fairness(directory.options(1, 1e9));
  std::vector<std::thread> threads;
  std::atomic<uint64_t> granted{0};
  for (int t = 0; t < 3; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 2000; ++i) {
        const auto now = Clock::now();
        (void)other.grant(65536, now);
        const uint64_t bytes = fairness.grant(65536, now);
        granted += bytes;
        fairness.moved(bytes);
        fairness.beat(1 << 20, now);
        (void)fairness.next();
      }
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(granted > 0);
}

#ifndef __SANITIZE_THREAD__

constexpr double kLinkRate = 100e6;

// A link that processes share, first come, first served.
struct SharedLink {
  std::atomic<int64_t> free_at;  // ns
  std::atomic<uint64_t> arrived[2];

  // When these bytes will have arrived.
  int64_t send(uint64_t bytes, int64_t now) {
    const auto takes = static_cast<int64_t>(1e9 * static_cast<double>(bytes) / kLinkRate);
    int64_t free = free_at.load();
    while (!free_at.compare_exchange_weak(free, std::max(free, now) + takes)) {
    }
    return std::max(free, now) + takes;
  }
};

[[noreturn]] void send_for_ever(const FairnessOptions& options, SharedLink& link, int index) {
  alarm(30);
  Fairness fairness(options);
  std::deque<std::pair<int64_t, uint64_t>> in_flight;
  uint64_t bytes_in_flight = 0;
  for (;;) {
    const Clock::time_point now = Clock::now();
    const int64_t now_ns = now.time_since_epoch().count();
    while (!in_flight.empty() && in_flight.front().first <= now_ns) {
      fairness.moved(in_flight.front().second);
      link.arrived[index] += in_flight.front().second;
      bytes_in_flight -= in_flight.front().second;
      in_flight.pop_front();
    }
    fairness.beat(64 << 20, now);
    while (bytes_in_flight < 1 << 20) {
      const uint64_t granted = fairness.grant(65536, now);
      if (granted == 0) break;
      in_flight.emplace_back(link.send(granted, now_ns), granted);
      bytes_in_flight += granted;
    }
    std::this_thread::sleep_for(200us);
  }
}

struct Outcome {
  double heavy, light;  // of the link's rate
  double back_s;        // until the light one had the whole link
};

Outcome run_processes() {
  const Directory directory;
  auto* link = static_cast<SharedLink*>(
      mmap(nullptr, sizeof(SharedLink), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  pid_t children[2];
  for (int i = 0; i < 2; ++i) {
    children[i] = fork();
    CHECK(children[i] >= 0);
    if (children[i] == 0) send_for_ever(directory.options(i == 0 ? 8 : 1), *link, i);
  }
  std::this_thread::sleep_for(1s);
  const auto start = Clock::now();
  const uint64_t heavy = link->arrived[0], light = link->arrived[1];
  std::this_thread::sleep_for(1s);
  const double whole = kLinkRate * Seconds(Clock::now() - start).count();
  Outcome outcome{static_cast<double>(link->arrived[0] - heavy) / whole,
                  static_cast<double>(link->arrived[1] - light) / whole, 10};
  CHECK(kill(children[0], SIGKILL) == 0);
  const auto killed = Clock::now();
  const auto step = 20ms;
  for (auto at = killed; at < killed + 2s; at = Clock::now()) {
    const uint64_t before = link->arrived[1];
    std::this_thread::sleep_for(step);
    const double possible = kLinkRate * Seconds(Clock::now() - at).count();
    if (static_cast<double>(link->arrived[1] - before) < 0.9 * possible) continue;
    outcome.back_s = Seconds(at - killed).count();
    break;
  }
  CHECK(kill(children[1], SIGKILL) == 0);
  for (const pid_t child : children) CHECK(waitpid(child, nullptr, 0) == child);
  munmap(link, sizeof(SharedLink));
  return outcome;
}

bool near(double share, double wanted) { return std::abs(share / wanted - 1) <= 0.1; }

void processes_share_and_one_is_killed() {
  // Other work on the machine may keep a process from its beats.
  for (int attempt = 0; attempt < 4; ++attempt) {
    const Outcome outcome = run_processes();
    std::printf("shares %.3f and %.3f of the link; after kill -9 the whole in %.0f ms\n",
                outcome.heavy, outcome.light, 1000 * outcome.back_s);
    if (near(outcome.heavy, 8.0 / 9) && near(outcome.light, 1.0 / 9) && outcome.back_s < 0.2)
      return;
  }
  CHECK(false);
}

#endif

}  // namespace

int main() {
  threads_share_one();
#ifndef __SANITIZE_THREAD__  // which allows no fork
  processes_share_and_one_is_killed();
#endif
}
