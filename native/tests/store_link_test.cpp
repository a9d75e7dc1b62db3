// A master that listens, and links to it: right and wrong tokens, several threads, lost
// connections, answers that wait for nodes, a reign that ends, and what they cost.
#include <poll.h>
#include <sys/socket.h>
#include <time.h>

#include <atomic>
#include <thread>

#include "../net/socket.h"
#include "../store/local_link.h"
#include "../store/master_server.h"
#include "../store/remote_link.h"
#include "store_running_node.h"

using namespace inlay;
using namespace inlay::tests;
using namespace std::chrono_literals;

namespace {

net::Token token_of(int number) { return net::Token(32, static_cast<std::byte>(number)); }
Clock::time_point in(std::chrono::milliseconds time) { return Clock::now() + time; }

MasterServerOptions server_options(const std::string& listen = "127.0.0.1:0") {
  MasterServerOptions options;
  options.listen = listen;
  options.tenants = {{token_of(1), "one"}, {token_of(2), "two"}};
  options.master.seed = 5;
  return options;
}
RemoteLinkOptions link_options(const std::string& address, int token = 1) {
  RemoteLinkOptions options;
  options.addresses = {address};
  options.token = token_of(token);
  return options;
}

Commit commit_of(const std::vector<std::string>& keys, const Extent& extent, uint64_t first,
                 IfExists if_exists = IfExists::kKeep) {
  Commit commit;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    Commit::Entry entry;
    entry.key = keys[i];
    entry.payload_bytes = 100;
    entry.record_bytes = 4096;
    entry.generation = extent.first_generation + first + i;
    entry.if_exists = if_exists;
    entry.first_place = static_cast<uint32_t>(i);
    entry.num_places = 1;
    commit.entries.push_back(entry);
    commit.places.push_back({extent.segment, extent.offset + 4096 * (first + i)});
  }
  return commit;
}

Extent grant(MasterLink& link) {
  Grant question;
  question.bytes = 1 << 20;
  question.least_bytes = 1 << 20;
  question.wait_ms = 1000;
  const Grant::Answer answer = link.ask(question, in(5s));
  CHECK(answer.room == Room::kGranted && answer.extents.size() == 1);
  return answer.extents[0];
}

// The same over both kinds of links.
void check_life(MasterLink& link, MasterLink& node_link) {
  RunningNode node(node_link, "a", 64 << 20);
  const Extent extent = grant(link);
  node.write(extent, extent.offset, "k0", extent.first_generation);
  node.write(extent, extent.offset + 4096, "k1", extent.first_generation + 1);
  const auto stored = link.ask(commit_of({"k0", "k1"}, extent, 0), in(5s));
  CHECK(stored.results[0].outcome == Committed::kStored &&
        stored.results[1].outcome == Committed::kStored);
  const auto exists = link.ask(Exists{{"k0", "k1", "k2"}}, in(5s));
  CHECK(
      (exists.presences == std::vector{Presence::kPresent, Presence::kPresent, Presence::kAbsent}));
  const auto found = link.ask(Locate{{"k1"}, 0, true}, in(5s));
  CHECK(found.found[0].num_places == 1 && found.places[0].offset == extent.offset + 4096);
  // This one comes when the node has killed the old record.
  node.write(extent, extent.offset + 8192, "k0", extent.first_generation + 2);
  const auto start = Clock::now();
  const auto replaced = link.ask(commit_of({"k0"}, extent, 2, IfExists::kReplace), in(5s));
  CHECK(replaced.results[0].outcome == Committed::kStored);
  CHECK(Clock::now() - start < 1s);  // well before cached locations expire
  const auto removed = link.ask(Remove{{"k0", "k0", "none"}, true}, in(5s));
  CHECK((removed.outcomes == std::vector{Removed::kRemoved, Removed::kAbsent, Removed::kAbsent}));
  std::atomic<int> told{0};
  for (int i = 0; i < 100; ++i)
    link.ask(Stat{{"k1"}}, in(5s), [&](StoreStatus status, const Stat::Answer& answer) {
      CHECK(status == StoreStatus::kOk && answer.objects[0].generation != 0);
      ++told;
    });
  while (told < 100) std::this_thread::yield();
}

void check_threads(const std::string& address) {
  RemoteLink link(link_options(address));
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&link, t] {
      const std::string key = "key of thread " + std::to_string(t);
      for (int i = 0; i < 2000; ++i) {
        const auto answer =
            link.ask(Exists{Keys(static_cast<std::size_t>(i % 7 + t), key)}, in(10s));
        CHECK(answer.presences.size() == static_cast<std::size_t>(i % 7 + t));
      }
    });
  for (auto& thread : threads) thread.join();
}

StoreStatus failure_of(MasterLink& link, std::chrono::milliseconds time) {
  try {
    (void)link.ask(Exists{{"key"}}, in(time));
  } catch (const StoreFailure& failure) {
    return failure.status;
  }
  return StoreStatus::kOk;
}

void check_refusals(const std::string& address) {
  RemoteLink stranger(link_options(address, 9));
  const auto start = Clock::now();
  CHECK(failure_of(stranger, 5s) == StoreStatus::kRefused && Clock::now() - start < 2s);
  RemoteLink nobody(link_options("127.0.0.1:1"));
  CHECK(failure_of(nobody, 300ms) == StoreStatus::kUnavailable);
  nobody.close();
  CHECK(failure_of(nobody, 300ms) == StoreStatus::kClosed);
  // No label of a name is as long, so that nobody is asked for it.
  RemoteLink unknown(link_options(std::string(64, 'x') + ":1"));
  CHECK(failure_of(unknown, 300ms) == StoreStatus::kUnavailable);
  RemoteLinkOptions late = link_options("127.0.0.1:1");
  late.addresses.push_back(address);  // the second one answers
  RemoteLink second(late);
  CHECK(failure_of(second, 5s) == StoreStatus::kOk && second.address() == address);
}

void check_time_out(const std::string& address) {
  RemoteLink link(link_options(address, 2));
  // Held by the master for longer than this waits.
  Grant grant;
  grant.bytes = grant.least_bytes = 4096;
  Join join;
  join.node = "empty";
  (void)link.ask(join, in(5s));
  Beat beat;
  beat.hold_ms = 450;
  try {
    (void)link.ask(beat, in(50ms));
    CHECK(false);
  } catch (const StoreFailure& failure) {
    CHECK(failure.status == StoreStatus::kTimeout);
  }
  CHECK(failure_of(link, 5s) == StoreStatus::kOk);
}

// What was asked before the master is lost is answered by the next one.
void check_return() {
  auto server = std::make_unique<MasterServer>(server_options());
  const std::string address = server->address();
  RemoteLink link(link_options(address));
  CHECK(failure_of(link, 5s) == StoreStatus::kOk && link.terms().epoch == 1);
  server.reset();
  CHECK(failure_of(link, 200ms) == StoreStatus::kUnavailable);
  std::atomic<bool> answered{false};
  link.ask(Exists{{"key"}}, in(20s), [&](StoreStatus status, const Exists::Answer&) {
    CHECK(status == StoreStatus::kOk);
    answered = true;
  });
  MasterServerOptions next = server_options(address);
  next.master.terms.epoch = 2;
  server = std::make_unique<MasterServer>(next);
  CHECK(failure_of(link, 10s) == StoreStatus::kOk && link.terms().epoch == 2);
  while (!answered) std::this_thread::yield();
  // An older one is no use.
  server.reset();
  server = std::make_unique<MasterServer>(server_options(address));
  CHECK(failure_of(link, 500ms) == StoreStatus::kUnavailable);
}

double boot_s() {
  timespec now{};
  clock_gettime(CLOCK_BOOTTIME, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) / 1e9;
}

// A master whose time is over says nothing, neither to who is connected nor to who comes, until its
// time is extended.
void check_reign() {
  MasterServerOptions options = server_options();
  options.serve_until_s = boot_s() + 3600;
  MasterServer server(options);
  RemoteLink link(link_options(server.address()));
  CHECK(failure_of(link, 5s) == StoreStatus::kOk);
  server.serve_until(boot_s());
  CHECK(failure_of(link, 300ms) == StoreStatus::kUnavailable);
  RemoteLink fresh(link_options(server.address()));
  CHECK(failure_of(fresh, 300ms) == StoreStatus::kUnavailable);
  server.serve_until(boot_s() + 3600);
  CHECK(failure_of(link, 5s) == StoreStatus::kOk);
  CHECK(failure_of(fresh, 5s) == StoreStatus::kOk);
}

// An older master learns from who comes back to it that there was a later one.
void check_epoch_seen() {
  MasterServerOptions options = server_options();
  options.master.terms.epoch = 7;
  auto server = std::make_unique<MasterServer>(options);
  const std::string address = server->address();
  RemoteLink link(link_options(address));
  CHECK(failure_of(link, 5s) == StoreStatus::kOk && server->epoch_seen() < 7);
  server.reset();
  options.listen = address;
  options.master.terms.epoch = 6;
  server = std::make_unique<MasterServer>(options);
  CHECK(failure_of(link, 2s) == StoreStatus::kUnavailable);
  CHECK(server->epoch_seen() == 7);
}

void check_tenants(const std::string& address) {
  RemoteLink one(link_options(address, 1));
  RemoteLink other(link_options(address, 2));
  RemoteLink node_link(link_options(address, 1));
  RunningNode node(node_link, "b", 64 << 20);
  const Extent extent = grant(one);
  node.write(extent, extent.offset, "mine", extent.first_generation);
  CHECK(one.ask(commit_of({"mine"}, extent, 0), in(5s)).results[0].outcome == Committed::kStored);
  CHECK(one.ask(Exists{{"mine"}}, in(5s)).presences[0] == Presence::kPresent);
  CHECK(other.ask(Exists{{"mine"}}, in(5s)).presences[0] == Presence::kAbsent);
  CHECK(other.ask(Table{}, in(5s)).segments.empty());
  // Nor can the other commit to it, or have room in it.
  CHECK(other.ask(commit_of({"theirs"}, extent, 1), in(5s)).results[0].outcome ==
        Committed::kClosed);
  Grant question;
  question.bytes = question.least_bytes = 4096;
  CHECK(other.ask(question, in(5s)).room == Room::kNoNode);
}

void measure(const std::string& address) {
  RemoteLink link(link_options(address));
  std::vector<std::string> names;
  for (int i = 0; i < 256; ++i)
    names.push_back("0123456789abcdef0123456789" + std::to_string(100000 + i));
  const Keys keys(names.begin(), names.end());
  const auto rate = [&](const Keys& some, int count) {
    (void)link.ask(Exists{some}, in(5s));
    const auto start = Clock::now();
    for (int i = 0; i < count; ++i) (void)link.ask(Exists{some}, in(5s));
    const std::chrono::duration<double> took = Clock::now() - start;
    return count / took.count();
  };
  std::printf("exists: %.0f/s one in flight; %.2f M keys/s by 256\n", rate({keys[0]}, 20000),
              rate(keys, 2000) * 256e-6);
}

}  // namespace

int main(int argc, char**) {
  {
    MasterServer server(server_options());
    if (argc > 1) {
      measure(server.address());
      return 0;
    }
    RemoteLink link(link_options(server.address()));
    RemoteLink node_link(link_options(server.address()));
    check_life(link, node_link);
    check_threads(server.address());
    check_refusals(server.address());
    check_tenants(server.address());
    check_time_out(server.address());
    CHECK(server.survey().counters.size() > 10);
  }
  {
    MasterOptions options;
    options.seed = 7;
    const auto master = std::make_shared<LocalMaster>(options);
    LocalLink link(master, "default");
    LocalLink node_link(master, "default");
    check_life(link, node_link);
  }
  check_return();
  check_reign();
  check_epoch_seen();
  return 0;
}
