// Endpoints without connections, of libfabric's reliable datagrams over UDP on loopback: bytes,
// bounds, fences, epochs, the clock that they are waited for with.
#include <poll.h>

#include <chrono>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "../net/fabric/unconnected.h"
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

Info port() {
  std::vector<Info> ports = find_ports(library(), "udp;ofi_rxd", "127.0.0.1");
  CHECK(ports.size() == 1);
  return std::move(ports.front());
}

struct Side : EndpointSink {
  Domain domain{library(), port()};
  std::unique_ptr<UnconnectedEndpoint> end;
  std::map<void*, int> completions;

  void open() { end = std::make_unique<UnconnectedEndpoint>(domain); }
  void on_completion(void* owner, int error) override { completions[owner] = error; }
};

void turn_until(const std::function<bool()>& done, const std::function<void()>& turn) {
  const Clock::time_point end = Clock::now() + 60s;  // a thread sanitizer on a busy machine
  while (!done()) {
    CHECK(Clock::now() < end);
    turn();
  }
}

struct Region {
  Region(Domain& domain, std::vector<std::byte>& memory, RegionAccess access)
      : region(domain.register_memory(memory.data(), memory.size(), access)),
        base(domain.addresses_are_virtual() ? reinterpret_cast<uintptr_t>(memory.data()) : 0) {}
  RemoteRange at(uint64_t offset) const { return {base + offset, region.key()}; }
  MemoryRegion region;
  uint64_t base;
};

std::vector<std::byte> pattern(std::size_t size, unsigned seed) {
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i < size; ++i)
    bytes[i] = static_cast<std::byte>((i * 2654435761u + seed) >> 13);
  return bytes;
}

// An end of either side, joined, and memory of either.
struct Pair {
  explicit Pair(std::size_t size)
      : ours(pattern(size, 1)),
        theirs(pattern(size, 2)),
        local(a.domain, ours, {true, false, false}),
        remote(b.domain, theirs, {true, true, true}) {
    join();
  }
  void join() {
    a.open();
    b.open();
    CHECK(a.end->join(b.end->address()));
    CHECK(b.end->join(a.end->address()));
  }
  void turn() {
    if (a.end != nullptr) a.end->progress(a);
    if (b.end != nullptr) b.end->progress(b);
  }
  bool try_post(bool read, std::size_t bytes, void* owner) {
    void* descriptor = local.region.descriptor();
    const auto post = read ? a.end->read(ours.data(), bytes, descriptor, remote.at(0), owner)
                           : a.end->write(ours.data(), bytes, descriptor, remote.at(0), owner);
    CHECK(post != Endpoint::Post::kFailed);
    return post == Endpoint::Post::kTaken;
  }
  // Providers take nothing before they know the way.
  void post(bool read, std::size_t bytes, void* owner) {
    turn_until([&] { return try_post(read, bytes, owner); }, [&] { turn(); });
  }
  int wait(void* owner) {
    turn_until([&] { return a.completions.contains(owner); }, [&] { turn(); });
    return a.completions.extract(owner).mapped();
  }

  Side a, b;
  std::vector<std::byte> ours, theirs;
  Region local, remote;
};

void reads_and_writes() {
  Pair pair(1 << 20);
  const auto theirs = pair.theirs;
  int read, write, peek;
  pair.post(true, 300'001, &read);
  CHECK(pair.wait(&read) == 0);
  CHECK(std::memcmp(pair.ours.data(), theirs.data(), 300'001) == 0);
  CHECK(pair.ours[300'001] == pattern(1 << 20, 1)[300'001]);
  pair.ours = pattern(1 << 20, 3);
  pair.post(false, 200'003, &write);
  // Confirmed: the bytes are there by then.
  CHECK(pair.wait(&write) == 0);
  CHECK(std::memcmp(pair.theirs.data(), pair.ours.data(), 200'003) == 0);
  CHECK(std::memcmp(&pair.theirs[200'003], &theirs[200'003], (1 << 20) - 200'003) == 0);
  CHECK(pair.a.end->peek(pair.remote.at(16), Endpoint::kMaxPeek, &peek) == Endpoint::Post::kTaken);
  CHECK(pair.wait(&peek) == 0);
  CHECK(std::memcmp(pair.a.end->peeked().data(), &pair.theirs[16], Endpoint::kMaxPeek) == 0);
}

void joins_once_and_only_addresses() {
  Side a, b;
  a.open();
  b.open();
  CHECK(!a.end->join({}));
  CHECK(!a.end->join(std::span(b.end->address()).first(8)));
  CHECK(!a.end->join(std::vector<std::byte>(64)));
  CHECK(a.end->join(b.end->address()));
  CHECK(!a.end->join(b.end->address()));
}

// Half of a read is there when its end is closed: nothing more comes.
void closing_fences_reads() {
  Pair pair(16 << 20);
  const auto before = pair.ours;
  int read;
  pair.post(true, pair.ours.size(), &read);
  turn_until([&] { return pair.ours != before; }, [&] { pair.turn(); });
  CHECK(!pair.a.completions.contains(&read));
  pair.a.end.reset();
  const auto left = pair.ours;
  const Clock::time_point end = Clock::now() + 50ms;
  while (Clock::now() < end) pair.turn();
  CHECK(pair.ours == left && left != pair.theirs);
}

// Stale bytes: the target closes its end with half of a write landed and more of it in its socket.
// It opens another one, for the same initiator's next end: the old one lands nothing through it.
void closing_fences_writes() {
  Pair pair(16 << 20);
  const auto before = pair.theirs;
  int write, next;
  pair.post(false, pair.ours.size(), &write);
  turn_until([&] { return pair.theirs != before; }, [&] { pair.turn(); });
  for (int i = 0; i < 100; ++i) pair.a.end->progress(pair.a);  // fills the target's socket
  CHECK(!pair.a.completions.contains(&write));
  pair.b.end.reset();
  pair.theirs.assign(pair.theirs.size(), std::byte{9});
  const auto left = pair.theirs;
  const auto old = std::move(pair.a.end);
  const Clock::time_point end = Clock::now() + 50ms;
  pair.join();
  while (Clock::now() < end) {
    old->progress(pair.a);
    pair.turn();
  }
  CHECK(pair.theirs == left);
  pair.post(false, 4096, &next);
  CHECK(pair.wait(&next) == 0);
  CHECK(std::memcmp(pair.theirs.data(), pair.ours.data(), 4096) == 0);
  CHECK(std::memcmp(&pair.theirs[4096], &left[4096], left.size() - 4096) == 0);
}

bool is_readable(const Endpoint& end, int most_ms) {
  pollfd waiting{end.descriptor().get(), POLLIN, 0};
  return poll(&waiting, 1, most_ms) == 1;
}

// The clock runs while there is something to look for, and not else.
void sleeps_and_wakes() {
  Pair pair(4096);
  CHECK(pair.a.end->may_sleep() && pair.b.end->may_sleep());
  CHECK(!is_readable(*pair.a.end, 10) && !is_readable(*pair.b.end, 0));
  int read;
  pair.b.end->attend(true);
  // Each turn of either side after its clock.
  const auto turn = [&] {
    for (Side* side : {&pair.a, &pair.b}) {
      CHECK(side->end->may_sleep());
      CHECK(is_readable(*side->end, 100));
      side->end->progress(*side);
    }
  };
  turn_until([&] { return pair.try_post(true, 4096, &read); }, turn);
  turn_until([&] { return pair.a.completions.contains(&read); }, turn);
  CHECK(pair.ours == pair.theirs);
  pair.b.end->attend(false);
  for (Side* side : {&pair.a, &pair.b}) {
    while (is_readable(*side->end, 1)) side->end->progress(*side);
    CHECK(side->end->may_sleep() && !is_readable(*side->end, 10));
  }
}

}  // namespace

int main() {
  reads_and_writes();
  joins_once_and_only_addresses();
  closing_fences_reads();
  closing_fences_writes();
  sleeps_and_wakes();
}
