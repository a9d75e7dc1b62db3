// Outbox and Inbox over a socket pair: every byte in its place, however the stream is cut.
#include "../net/stream.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "check.h"

namespace {

using namespace inlay;
using namespace inlay::net;

struct Pair {
  Pair() { CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds) == 0); }
  ~Pair() {
    close(fds[0]);
    close(fds[1]);
  }
  int fds[2];
};

// Lands WRITE payloads at the offsets that their ranges name.
struct Target : Sink {
  std::vector<std::byte> memory = std::vector<std::byte>(4 << 20);
  int begun = 0;
  int ended = 0;
  int allowed = 1 << 30;
  int skip_from = 1 << 30;
  const Inbox* inbox = nullptr;
  int damaged = 0;

  const char* on_frame(const Frame& frame, std::span<const WireRange> ranges,
                       Pieces& landing) override {
    CHECK(frame.slice == static_cast<uint32_t>(begun));
    if (begun++ < skip_from)
      for (const WireRange& range : ranges) landing.add(&memory[range.offset], range.length);
    return frame.transfer == 99 ? "refused" : nullptr;
  }
  const char* on_payload_end() override {
    CHECK(++ended == begun);
    if (inbox != nullptr && !inbox->intact()) ++damaged;
    return nullptr;
  }
  bool paused() const override { return begun >= allowed; }
};

OutFrame write_frame(uint32_t slice, std::byte* from, const std::vector<WireRange>& ranges,
                     uint64_t transfer = 1, bool verified = false) {
  OutFrame out;
  uint64_t bytes = 0;
  for (const WireRange& range : ranges) {
    out.payload.add(from + range.offset, range.length);
    bytes += range.length;
  }
  out.serial = slice;
  out.head = encode({Kind::kWrite, transfer, slice, 0, Status::kOk, bytes, 0, 0, verified}, ranges);
  out.verified = verified;
  return out;
}

std::vector<std::byte> random_bytes(std::size_t size) {
  std::mt19937_64 random(size);
  std::vector<std::byte> bytes(size);
  for (std::byte& byte : bytes) byte = std::byte(random());
  return bytes;
}

void test_many_frames() {
  Pair pair;
  Target target;
  Inbox inbox;
  Outbox outbox;
  target.inbox = &inbox;
  auto source = random_bytes(target.memory.size());
  std::mt19937_64 random(2);
  std::vector<std::byte> expected(source.size());
  uint32_t frames = 0;
  for (std::size_t at = 0; at < source.size();) {
    std::vector<WireRange> ranges;
    const std::size_t count = 1 + random() % (random() % 8 == 0 ? kMaxRanges : 3);
    for (std::size_t i = 0; i < count && at < source.size(); ++i) {
      const std::size_t most = random() % 4 == 0 ? 200000 : 3000;
      const std::size_t length = std::min<std::size_t>(source.size() - at, 1 + random() % most);
      ranges.push_back({at, length});
      std::memcpy(&expected[at], &source[at], length);
      at += length + random() % 5;  // gaps stay as they are
    }
    if (!ranges.empty())
      outbox.push(write_frame(frames++, source.data(), ranges, 1, random() % 2 == 0));
  }
  while (target.ended < static_cast<int>(frames)) {
    for (uint64_t turns = random() % 3; turns > 0; --turns)
      if (!outbox.empty()) CHECK(outbox.flush(pair.fds[0]) != Io::kClosed);
    for (uint64_t turns = random() % 3; turns > 0; --turns)
      CHECK(inbox.receive(pair.fds[1], target) != Io::kClosed);
  }
  CHECK(outbox.empty() && outbox.bytes() == 0 && !outbox.begun());
  CHECK(target.memory == expected && target.damaged == 0);
  CHECK(inbox.receive(pair.fds[1], target) == Io::kBlocked);
}

// What stands between the two ends: passes on what comes, with one bit of it turned.
struct Wire {
  Pair in;
  Pair out;
  uint64_t passed = 0;
  uint64_t damage_at = ~uint64_t{0};

  void pass() {
    std::array<std::byte, 3000> bytes;
    const ssize_t n = recv(in.fds[1], bytes.data(), bytes.size(), 0);
    if (n <= 0) return;
    if (damage_at - passed < static_cast<uint64_t>(n)) bytes[damage_at - passed] ^= std::byte{16};
    passed += static_cast<uint64_t>(n);
    CHECK(send(out.fds[0], bytes.data(), static_cast<std::size_t>(n), 0) == n);
  }
};

void test_damage() {
  constexpr uint64_t kHead = kHeaderBytes + 2 * kRangeBytes;
  constexpr uint64_t kBytes = 700000;  // of each of three frames
  auto source = random_bytes(kBytes + 10);
  // In the second frame: at both ends of the payload and its parts, in the CRC, beside it.
  for (uint64_t at : {uint64_t{0}, uint64_t{99}, uint64_t{100}, uint64_t{262143}, uint64_t{262144},
                      kBytes - 1, kBytes, kBytes + 3, kBytes + 7}) {
    for (const bool verified : {true, false}) {
      if (!verified && at >= kBytes) continue;
      Wire wire;
      Target target;
      Inbox inbox;
      Outbox outbox;
      target.inbox = &inbox;
      wire.damage_at = 2 * kHead + kBytes + (verified ? kTrailerBytes : 0) + at;
      for (uint32_t i = 0; i < 3; ++i)
        outbox.push(write_frame(i, source.data(), {{0, 100}, {110, kBytes - 100}}, 1, verified));
      while (target.ended < 3) {
        const int before = target.damaged;
        if (!outbox.empty()) CHECK(outbox.flush(wire.in.fds[0]) != Io::kClosed);
        wire.pass();
        CHECK(inbox.receive(wire.out.fds[1], target) != Io::kClosed);
        CHECK(target.damaged == before || target.begun >= 2);
      }
      CHECK(target.damaged == (verified ? 1 : 0));
    }
  }
}

void test_skipping() {
  for (const bool midway : {false, true}) {
    Pair pair;
    Target target;
    Inbox inbox;
    Outbox outbox;
    auto source = random_bytes(1 << 20);
    target.inbox = &inbox;
    outbox.push(write_frame(0, source.data(), {{0, 1 << 20}}, 1, true));
    outbox.push(write_frame(1, source.data(), {{10, 20}}, 1, true));
    target.skip_from = midway ? 1 << 30 : 0;
    CHECK(outbox.flush(pair.fds[0]) == Io::kMoved && outbox.begun());
    CHECK(inbox.receive(pair.fds[1], target) == Io::kMoved && inbox.in_payload());
    if (midway) inbox.skip_rest();
    const auto before = target.memory;
    target.skip_from = 1;
    for (int i = 0; target.ended < 2; ++i) {
      CHECK(i < 1000);
      if (!outbox.empty()) (void)outbox.flush(pair.fds[0]);
      (void)inbox.receive(pair.fds[1], target);
      CHECK(target.memory == before);
    }
    CHECK(target.damaged == 0);
  }
}

void test_pause_and_errors() {
  Pair pair;
  Target target;
  Inbox inbox;
  Outbox outbox;
  auto source = random_bytes(1000);
  for (uint32_t i = 0; i < 4; ++i)
    outbox.push(write_frame(i, source.data(), {{i, 100}}, i < 3 ? 1 : 99));
  CHECK(outbox.flush(pair.fds[0]) == Io::kMoved && outbox.empty());
  target.allowed = 2;
  CHECK(inbox.receive(pair.fds[1], target) == Io::kMoved);
  CHECK(inbox.receive(pair.fds[1], target) == Io::kBlocked && target.ended == 2);
  target.allowed = 100;
  CHECK(inbox.receive(pair.fds[1], target) == Io::kClosed);
  CHECK(target.ended == 3 && std::string(inbox.problem()) == "refused");
}

void test_garbage() {
  std::mt19937_64 random(3);
  for (int i = 0; i < 300; ++i) {
    Pair pair;
    Target target;
    Inbox inbox;
    std::vector<std::byte> garbage(5000);
    for (std::byte& byte : garbage) byte = std::byte(random());
    CHECK(send(pair.fds[0], garbage.data(), garbage.size(), 0) == 5000);
    CHECK(inbox.receive(pair.fds[1], target) == Io::kClosed && target.begun == 0);
  }
}

void test_dropping() {
  Pair pair;
  Outbox outbox;
  auto source = random_bytes(4 << 20);
  for (uint32_t i = 0; i < 3; ++i) outbox.push(write_frame(i, source.data(), {{0, 4 << 20}}));
  CHECK(outbox.flush(pair.fds[0]) == Io::kMoved && outbox.begun());
  outbox.drop([](const OutFrame& frame) { return frame.serial != 2; });
  CHECK(outbox.size() == 2 && outbox.frames().front().serial == 0);  // begun: it has to end
}

// Grants what it is told to, once.
struct Allowance : Gate {
  uint64_t left = 0;
  uint64_t grant(uint64_t wanted) override {
    const uint64_t granted = std::min(wanted, left);
    left -= granted;
    return granted;
  }
};

void test_gates() {
  Pair pair;
  Target target;
  Inbox inbox;
  Outbox outbox;
  Allowance sends;
  Allowance fetches;
  outbox.share(&sends, &fetches);
  auto source = random_bytes(1 << 20);
  for (const bool verified : {false, true})
    outbox.push(write_frame(verified, source.data(), {{0, 1 << 20}}, 1, verified));
  const uint64_t all = outbox.bytes();
  CHECK(outbox.flush(pair.fds[0]) == Io::kBlocked && outbox.held() && !outbox.ready());
  CHECK(!outbox.begun() && outbox.bytes() == all);
  uint64_t granted = 0;
  while (!outbox.empty()) {
    if (outbox.held() || sends.left == 0) granted += sends.left = 10000;
    (void)outbox.flush(pair.fds[0]);
    CHECK(all - outbox.bytes() <= granted);  // never ahead of what was granted
    while (inbox.receive(pair.fds[1], target) == Io::kMoved) {
    }
  }
  CHECK(target.ended == 2 && inbox.take_received() >= 2 << 20 && inbox.take_received() == 0);
  CHECK(std::memcmp(target.memory.data(), source.data(), source.size()) == 0);
  CHECK(outbox.take_load(pair.fds[0]).moved == all && outbox.take_load(pair.fds[0]).moved == 0);

  // What fetches nothing goes; what fetches waits until all of it is granted, in parts or not.
  for (const uint64_t bytes : {0, 3000}) {
    OutFrame frame;
    frame.head = encode({Kind::kRead, 1, 7, 0, Status::kOk, 0, 0, 0, false}, {});
    frame.fetches = bytes;
    outbox.push(std::move(frame));
  }
  CHECK(outbox.flush(pair.fds[0]) == Io::kMoved && outbox.size() == 1 && outbox.held());
  fetches.left = 2000;
  CHECK(outbox.flush(pair.fds[0]) == Io::kBlocked && outbox.held() && fetches.left == 0);
  fetches.left = 2000;
  CHECK(outbox.flush(pair.fds[0]) == Io::kMoved && outbox.empty() && fetches.left == 1000);
  CHECK(!outbox.held());
}

}  // namespace

int main() {
  test_many_frames();
  test_damage();
  test_skipping();
  test_pause_and_errors();
  test_garbage();
  test_dropping();
  test_gates();
}
