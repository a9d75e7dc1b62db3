// Engines in several processes: random transfers, messages, cancels, deadlines, deregistrations,
// stops and kills, while every byte is compared with what it has to be.
//
//   transfer_random_test [--seed N] [--operations N] [--transports a,b|all] [--json PATH]
//
// The choices follow from the seed, the order in which threads and processes get to them does not.
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "random/worker.h"

namespace {

using namespace random_test;

constexpr int64_t kOperationsOfEpisode = 250;

struct Options {
  uint64_t seed = std::random_device()();
  int64_t operations = 1000;
  std::optional<Transports> transports;
  std::string json;
};

// Which transports the engines of an episode may use; empty: all that work here.
std::vector<Transports> choices() {
  return {
      {},
      {"tcp"},
      {"local", "shm"},
      {"shm", "tcp"},
      {"local", "tcp", "file"},
      {"local", "shm", "file", "tcp"},
#ifdef INLAY_TEST_FABRIC
      {"fabric"},
      {"fabric", "shm", "local"},
#endif
  };
}

std::string text_of(const Transports& transports) {
  std::string text;
  for (const std::string& one : transports) text += (text.empty() ? "" : ",") + one;
  return text.empty() ? "all" : text;
}

Transports transports_of(const std::string& text) {
  Transports transports;
  for (std::size_t at = 0; text != "all" && at <= text.size();) {
    const std::size_t end = std::min(text.find(',', at), text.size());
    transports.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return transports;
}

Options options_of(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; i += 2) {
    const std::string name = argv[i];
    EXPECT(i + 1 < argc, name + " needs a value");
    const char* value = argv[i + 1];
    if (name == "--seed")
      options.seed = std::strtoull(value, nullptr, 10);
    else if (name == "--operations")
      options.operations = std::strtoll(value, nullptr, 10);
    else if (name == "--transports")
      options.transports = transports_of(value);
    else if (name == "--json")
      options.json = value;
    else
      EXPECT(false, name + ": there is no such option");
  }
  return options;
}

void run_episode(const World& world, Zygote& zygote, Counts& counts, uint64_t seed,
                 uint32_t transports_id, const Transports& transports, int64_t operations,
                 std::atomic<uint32_t>& last_message) {
  std::array<std::unique_ptr<Target>, kTargets> targets;
  for (int i = 0; i < kTargets; ++i)
    targets[static_cast<std::size_t>(i)] =
        std::make_unique<Target>(world, zygote, i, transports_id, transports);
  Roamer roamer(transports);
  const bool verifies = transports.empty() || std::ranges::count(transports, "tcp") > 0;
  Episode episode{world, counts, transports, targets, roamer, last_message, verifies};
  {
    std::vector<std::unique_ptr<Worker>> workers;
    std::vector<std::thread> threads;
    for (int i = 0; i < kWorkers; ++i)
      workers.push_back(
          std::make_unique<Worker>(episode, i, seed * kWorkers + static_cast<uint64_t>(i)));
    for (const auto& worker : workers)
      threads.emplace_back([&] { worker->run((operations + kWorkers - 1) / kWorkers); });
    for (std::thread& thread : threads) thread.join();
    for (const auto& worker : workers) worker->check_all();
    roamer.get()->close();
  }
  for (const auto& target : targets) {
    target->end();
    EXPECT(target->arena().guards_are_zero(), "memory around a segment was written");
  }
}

void hung(int) {
  static const char kText[] = "transfer_random_test hangs\n";
  (void)!write(2, kText, sizeof(kText) - 1);
  _exit(1);
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = options_of(argc, argv);
  seed_of_run = options.seed;
  std::printf("transfer_random_test --seed %llu --operations %lld\n",
              static_cast<unsigned long long>(options.seed),
              static_cast<long long>(options.operations));
  std::fflush(stdout);
  std::signal(SIGALRM, hung);
  alarm(static_cast<unsigned>(120 + options.operations / 10));

  const std::vector<Transports> all =
      options.transports ? std::vector<Transports>{*options.transports} : choices();
  const World world;
  Counts counts;
  std::atomic<uint32_t> last_message{0};
  Dice dice(options.seed);
  const Clock::time_point begin = Clock::now();
  {
    Zygote zygote(world, all);
    for (int64_t left = options.operations; left > 0; left -= kOperationsOfEpisode) {
      const auto id = static_cast<uint32_t>(dice.below(all.size()));
      const uint64_t seed = dice.below(UINT64_MAX);
      counts.add("episode " + text_of(all[id]));
      run_episode(world, zygote, counts, seed, id, all[id], std::min(left, kOperationsOfEpisode),
                  last_message);
    }
  }
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  const std::string text = "{\"seed\": " + std::to_string(options.seed) +
                           ", \"operations\": " + std::to_string(options.operations) +
                           ", \"seconds\": " + std::to_string(seconds) +
                           ", \"counts\": " + counts.json() + "}\n";
  std::fputs(text.c_str(), stdout);
  if (!options.json.empty()) std::ofstream(options.json) << text;
}
