// Connections of libfabric's tcp provider on loopback: bytes, bounds, rights, fences, a dead peer.
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "../core/status.h"
#include "../net/fabric/connected.h"
#include "../net/fabric/greeting.h"
#include "check.h"

namespace {

using namespace inlay;
using namespace inlay::net;
using namespace inlay::net::fabric;
using namespace std::chrono_literals;

const Library& library() {
  std::string problem;
  const Library* loaded = load_library(problem);
  if (loaded == nullptr) std::fprintf(stderr, "%s\n", problem.c_str());
  CHECK(loaded != nullptr);
  return *loaded;
}

// Also where a provider's writes complete before they land.
bool unconfirmed = false;

Info port() {
  std::vector<Info> ports = find_ports(library(), "tcp", "127.0.0.1");
  CHECK(ports.size() == 1);
  CHECK((ports.front()->tx_attr->op_flags & FI_DELIVERY_COMPLETE) != 0);
  if (unconfirmed) ports.front()->tx_attr->op_flags = 0;
  return std::move(ports.front());
}

std::vector<std::byte> bytes_of(const char* text) {
  const auto* begin = reinterpret_cast<const std::byte*>(text);
  return {begin, begin + std::strlen(text)};
}

// A port that accepts everybody, and the endpoints there by their ids.
struct Side : ConnectionSink, EndpointSink {
  Domain domain{library(), port()};
  ConnectionManager manager{domain};
  std::vector<std::unique_ptr<ConnectedEndpoint>> accepted;
  std::vector<std::byte> heard;
  std::map<const fid*, std::vector<std::byte>> connected;
  std::map<const fid*, int> ended;
  std::map<void*, int> completions;
  bool refuses = false;

  void on_request(Info info, std::span<const std::byte> greeting) override {
    heard.assign(greeting.begin(), greeting.end());
    if (refuses) return manager.refuse(*info);
    accepted.push_back(std::make_unique<ConnectedEndpoint>(manager, *info));
    accepted.back()->accept(bytes_of("welcome"));
  }
  void on_connected(const fid* endpoint, std::span<const std::byte> greeting) override {
    connected[endpoint].assign(greeting.begin(), greeting.end());
  }
  void on_ended(const fid* endpoint) override { ++ended[endpoint]; }
  void on_completion(void* owner, int error) override { completions[owner] = error; }

  void turn() {
    manager.read_events(*this);
    for (const auto& endpoint : accepted) endpoint->progress(*this);
  }
};

std::unique_ptr<ConnectedEndpoint> connect(Side& side, std::span<const std::byte> address) {
  auto endpoint =
      std::make_unique<ConnectedEndpoint>(side.manager, *side.manager.info_towards(address));
  endpoint->connect(address, bytes_of("hello"));
  return endpoint;
}

void turn_until(const std::function<bool()>& done, const std::function<void()>& turn) {
  const Clock::time_point end = Clock::now() + 10s;
  while (!done()) {
    CHECK(Clock::now() < end);
    turn();
  }
}

// Two ports of one process, and a connection from a to b.
struct Pair {
  Side a;
  Side b;
  std::unique_ptr<ConnectedEndpoint> initiator;

  Pair() { connect(); }
  void connect() {
    initiator = ::connect(a, b.manager.address());
    turn_until([&] { return a.connected.contains(initiator->id()) && b.connected.size() > 0; },
               [&] { turn(); });
  }
  void turn() {
    a.turn();
    b.turn();
    if (initiator != nullptr) initiator->progress(a);
  }
  int wait(void* owner) {
    turn_until([&] { return a.completions.contains(owner); }, [&] { turn(); });
    const int error = a.completions[owner];
    a.completions.erase(owner);
    return error;
  }
};

std::vector<std::byte> pattern(std::size_t size, unsigned seed) {
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i < size; ++i)
    bytes[i] = static_cast<std::byte>((i * 2654435761u + seed) >> 13);
  return bytes;
}

struct Region {
  Domain& domain;
  std::vector<std::byte>& memory;
  std::optional<MemoryRegion> region;
  Region(Domain& domain, std::vector<std::byte>& memory, RegionAccess access)
      : domain(domain), memory(memory) {
    region = domain.register_memory(memory.data(), memory.size(), access);
  }
  RemoteRange at(uint64_t offset) const {
    const uint64_t base =
        domain.addresses_are_virtual() ? reinterpret_cast<uintptr_t>(memory.data()) : 0;
    return {base + offset, region->key()};
  }
};

constexpr std::size_t kSize = 1 << 20;

void reads_and_writes() {
  Pair pair;
  CHECK(pair.b.heard.size() >= 5 && std::memcmp(pair.b.heard.data(), "hello", 5) == 0);
  const auto& welcome = pair.a.connected[pair.initiator->id()];
  CHECK(welcome.size() >= 7 && std::memcmp(welcome.data(), "welcome", 7) == 0);

  std::vector<std::byte> theirs = pattern(kSize, 1);
  std::vector<std::byte> ours(kSize);
  const Region remote(pair.b.domain, theirs, {true, true, true});
  const Region local(pair.a.domain, ours, {true, false, false});
  void* descriptor = local.region->descriptor();
  int read, write, confirm;
  CHECK(pair.initiator->read(ours.data(), kSize, descriptor, remote.at(0), &read) ==
        Endpoint::Post::kTaken);
  CHECK(pair.wait(&read) == 0);
  CHECK(ours == theirs);

  ours = pattern(kSize, 2);
  CHECK(pair.initiator->write(&ours[4096], 8192, descriptor, remote.at(512), &write) ==
        Endpoint::Post::kTaken);
  // Ordered behind the write, so it proves that the write landed.
  CHECK(pair.initiator->confirm(remote.at(512), &confirm) == Endpoint::Post::kTaken);
  CHECK(pair.wait(&confirm) == 0);
  CHECK(pair.a.completions[&write] == 0);
  const auto before = pattern(kSize, 1);
  CHECK(std::memcmp(&theirs[512], &ours[4096], 8192) == 0);
  CHECK(std::memcmp(theirs.data(), before.data(), 512) == 0);
  CHECK(std::memcmp(&theirs[512 + 8192], &before[512 + 8192], kSize - 512 - 8192) == 0);
}

// More operations than the queue has: some are told to come again, all come to their end.
void many_operations() {
  Pair pair;
  std::vector<std::byte> theirs = pattern(kSize, 3);
  std::vector<std::byte> ours(kSize);
  const Region remote(pair.b.domain, theirs, {true, true, false});
  const Region local(pair.a.domain, ours, {true, false, false});
  constexpr std::size_t kPiece = 1024;
  std::size_t posted = 0;
  int full = 0;
  turn_until([&] { return pair.a.completions.size() == kSize / kPiece; },
             [&] {
               while (posted < kSize) {
                 const auto post =
                     pair.initiator->read(&ours[posted], kPiece, local.region->descriptor(),
                                          remote.at(posted), &ours[posted]);
                 CHECK(post != Endpoint::Post::kFailed);
                 full += post == Endpoint::Post::kFull;
                 if (post == Endpoint::Post::kFull) break;
                 posted += kPiece;
               }
               pair.turn();
             });
  CHECK(full > 0);
  for (const auto& [owner, error] : pair.a.completions) CHECK(error == 0);
  CHECK(ours == theirs);
}

// Nobody gets past the end of a region, its rights, or its life.
void refuses_what_is_not_offered() {
  enum What { kPastTheEnd, kBefore, kWrongKey, kReadOnly, kNoAccess, kDeregistered };
  for (const What what : {kPastTheEnd, kBefore, kWrongKey, kReadOnly, kNoAccess, kDeregistered}) {
    Pair pair;
    // Canaries around the middle, which alone is registered.
    std::vector<std::byte> theirs = pattern(3 * 4096, 4);
    const auto before = theirs;
    std::vector<std::byte> ours = pattern(2 * 4096, 5);
    const auto ours_before = ours;
    const bool no_access = what == kNoAccess;
    std::optional<MemoryRegion> remote = pair.b.domain.register_memory(
        &theirs[4096], 4096, {true, !no_access, what != kReadOnly && !no_access});
    const Region local(pair.a.domain, ours, {true, false, false});
    RemoteRange range{
        pair.b.domain.addresses_are_virtual() ? reinterpret_cast<uintptr_t>(&theirs[4096]) : 0,
        remote->key()};
    std::size_t bytes = 4096;
    if (what == kPastTheEnd) bytes = 4097;
    if (what == kBefore) range.address -= 16;
    if (what == kWrongKey) range.key ^= 1;
    if (what == kDeregistered) remote.reset();
    int write, read;
    CHECK(pair.initiator->write(ours.data(), bytes, local.region->descriptor(), range, &write) ==
          Endpoint::Post::kTaken);
    CHECK(pair.wait(&write) != 0);
    CHECK(theirs == before);
    if (what == kReadOnly) continue;
    pair.connect();
    CHECK(pair.initiator->read(ours.data(), bytes, local.region->descriptor(), range, &read) ==
          Endpoint::Post::kTaken);
    CHECK(pair.wait(&read) != 0);
    CHECK(ours == ours_before);
  }
}

void refused_connection_ends() {
  Side a;
  Side b;
  b.refuses = true;
  const auto initiator = connect(a, b.manager.address());
  turn_until([&] { return a.ended[initiator->id()] > 0; },
             [&] {
               a.turn();
               b.turn();
             });
  CHECK(!a.connected.contains(initiator->id()));
}

// Where nobody listens.
void unreachable_ends() {
  Side a;
  std::vector<std::byte> address;
  {
    const Side gone;
    address = gone.manager.address();
  }
  const auto initiator = connect(a, address);
  turn_until([&] { return a.ended[initiator->id()] > 0; }, [&] { a.turn(); });
}

// The initiator's end is the fence of reads: closed with a read under way, nothing lands any more.
void closing_fences_reads() {
  Pair pair;
  std::vector<std::byte> theirs = pattern(16 << 20, 6);
  std::vector<std::byte> ours(theirs.size());
  const Region remote(pair.b.domain, theirs, {true, true, false});
  const Region local(pair.a.domain, ours, {true, false, false});
  int read;
  CHECK(pair.initiator->read(ours.data(), ours.size(), local.region->descriptor(), remote.at(0),
                             &read) == Endpoint::Post::kTaken);
  // Part of it is there.
  turn_until([&] { return ours[0] == theirs[0] && ours[1] == theirs[1]; }, [&] { pair.turn(); });
  CHECK(!pair.a.completions.contains(&read));
  pair.initiator.reset();
  const auto as_left = ours;
  const Clock::time_point end = Clock::now() + 100ms;
  while (Clock::now() < end) pair.turn();
  CHECK(ours == as_left);
}

// The target's end is the fence of writes: closed with half of one in its socket, the rest does not
// land, and the initiator learns that the write failed.
void closing_fences_writes() {
  Pair pair;
  std::vector<std::byte> theirs(16 << 20);
  std::vector<std::byte> ours = pattern(theirs.size(), 7);
  const Region remote(pair.b.domain, theirs, {true, true, true});
  const Region local(pair.a.domain, ours, {true, false, false});
  int write;
  CHECK(pair.initiator->write(ours.data(), ours.size(), local.region->descriptor(), remote.at(0),
                              &write) == Endpoint::Post::kTaken);
  turn_until([&] { return theirs[0] == ours[0] && theirs[1] == ours[1]; }, [&] { pair.turn(); });
  CHECK(!pair.a.completions.contains(&write));
  pair.b.accepted.clear();
  const auto as_left = theirs;
  CHECK(pair.wait(&write) != 0);
  CHECK(theirs == as_left);
}

// A completion queue sleeps: its descriptor becomes readable when there is something to do.
void sleeps_and_wakes() {
  Pair pair;
  std::vector<std::byte> theirs = pattern(4096, 8);
  std::vector<std::byte> ours(4096);
  const Region remote(pair.b.domain, theirs, {true, true, false});
  const Region local(pair.a.domain, ours, {true, false, false});
  while (!pair.initiator->may_sleep()) pair.turn();
  pollfd waiting{pair.initiator->descriptor().get(), POLLIN, 0};
  CHECK(poll(&waiting, 1, 20) == 0);
  int read;
  CHECK(pair.initiator->read(ours.data(), 4096, local.region->descriptor(), remote.at(0), &read) ==
        Endpoint::Post::kTaken);
  turn_until([&] { return pair.a.completions.contains(&read); },
             [&] {
               pair.b.turn();
               if (pair.initiator->may_sleep()) {
                 waiting.revents = 0;
                 poll(&waiting, 1, 10);
               }
               pair.initiator->progress(pair.a);
             });
  CHECK(ours == theirs);
}

// kill -9 of the target: the initiator's operations fail soon.
void a_killed_peer_is_noticed() {
  int tell[2];
  CHECK(pipe(tell) == 0);
  const pid_t target = fork();
  CHECK(target >= 0);
  if (target == 0) {
    Side side;
    std::vector<std::byte> memory = pattern(64 << 20, 9);
    const Region region(side.domain, memory, {true, true, true});
    const RemoteRange range = region.at(0);
    const std::vector<std::byte>& address = side.manager.address();
    const std::size_t size = address.size();
    CHECK(write(tell[1], &range, sizeof(range)) == sizeof(range));
    CHECK(write(tell[1], &size, sizeof(size)) == sizeof(size));
    CHECK(write(tell[1], address.data(), size) == static_cast<ssize_t>(size));
    const Clock::time_point end = Clock::now() + 30s;
    while (Clock::now() < end) side.turn();
    _exit(0);
  }
  RemoteRange range;
  std::size_t size;
  CHECK(read(tell[0], &range, sizeof(range)) == sizeof(range));
  CHECK(read(tell[0], &size, sizeof(size)) == sizeof(size));
  std::vector<std::byte> address(size);
  CHECK(read(tell[0], address.data(), size) == static_cast<ssize_t>(size));

  Side side;
  const auto initiator = connect(side, address);
  const auto turn = [&] {
    side.turn();
    initiator->progress(side);
  };
  turn_until([&] { return side.connected.contains(initiator->id()); }, turn);
  std::vector<std::byte> ours(64 << 20);
  const Region local(side.domain, ours, {true, false, false});
  int read_id;
  CHECK(initiator->read(ours.data(), ours.size(), local.region->descriptor(), range, &read_id) ==
        Endpoint::Post::kTaken);
  // Nobody receives meanwhile, so not more is under way than sockets hold.
  CHECK(kill(target, SIGKILL) == 0);
  turn_until([&] { return side.completions.contains(&read_id); }, turn);
  CHECK(side.completions[&read_id] != 0);
  turn_until([&] { return side.ended[initiator->id()] > 0; }, turn);
  CHECK(waitpid(target, nullptr, 0) == target);
}

void greetings_prove() {
  Meeting meeting;
  meeting.greeting.connection = 7;
  meeting.greeting.initiator[0] = std::byte{1};
  meeting.target[0] = std::byte{2};
  meeting.nonce[5] = std::byte{3};
  const Token token(32, std::byte{9});
  const Token other(32, std::byte{8});
  const auto said = greet(meeting, token);
  CHECK(said.size() == kGreetingBytes && said.size() <= ConnectedEndpoint::kMaxGreeting);
  CHECK(read_greeting(said)->connection == 7);
  CHECK(read_greeting(said)->initiator == meeting.greeting.initiator);
  CHECK(!read_greeting(std::span(said).first(39)));
  CHECK(proves(said, meeting, token) && !proves(said, meeting, other));
  const auto answer = reply(meeting, token);
  CHECK(reply_proves(answer, meeting, token) && !reply_proves(answer, meeting, other));
  CHECK(!reply_proves(std::span(answer).first(15), meeting, token));
  CHECK(!reply_proves(std::span(said).subspan(24), meeting, token));
  for (int field = 0; field < 4; ++field) {
    Meeting changed = meeting;
    if (field == 0) ++changed.greeting.connection;
    if (field == 1) changed.greeting.initiator[3] = std::byte{1};
    if (field == 2) changed.target[3] = std::byte{1};
    if (field == 3) changed.nonce[31] = std::byte{1};
    CHECK(!proves(said, changed, token) && !reply_proves(answer, changed, token));
  }
}

}  // namespace

int main() {
  // Forks before this process has loaded the library.
  a_killed_peer_is_noticed();
  greetings_prove();
  reads_and_writes();
  unconfirmed = true;
  reads_and_writes();
  unconfirmed = false;
  many_operations();
  refuses_what_is_not_offered();
  refused_connection_ends();
  unreachable_ends();
  closing_fences_reads();
  closing_fences_writes();
  sleeps_and_wakes();
}
