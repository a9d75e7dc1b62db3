// What a client with the right token, or with none, can do to an engine's port: nothing outside the
// segments changes, nothing outside them is sent, and the engine goes on.
//
//   wire_fuzz_test [CONNECTIONS [SEED]]
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <array>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "../core/crc32c.h"
#include "../net/bytes.h"
#include "../transfer/engine.h"
#include "../transfer/lane_question.h"
#include "check.h"

namespace {

using namespace inlay;
using namespace inlay::transfer;

const net::Token kToken(32, std::byte{7});
constexpr uint64_t kReadable = 96 << 10;
constexpr uint64_t kWritable = 160 << 10;
constexpr uint64_t kGuarded = 160 << 10;
constexpr uint64_t kGap = 64 << 10;
// Under this grant the first bytes of the guarded segment may be written.
constexpr uint64_t kGrant = 77;
constexpr uint64_t kGranted = 64 << 10;
// Fills the memory that is not offered. Offered memory and payloads begin without it, but where a
// damaged frame shifts the others, bytes of their heads are written as payload: so only that many
// in a row tell of a leak.
constexpr std::byte kSecret{0xee};
constexpr std::size_t kLeak = 12;

std::mt19937_64 generator;
uint64_t below(uint64_t limit) { return generator() % limit; }
bool one_in(uint64_t n) { return below(n) == 0; }
std::byte plain_byte() { return std::byte(below(200)); }

class FirstBytes final : public Guard {
 public:
  bool allows(uint64_t offset, uint64_t length, uint64_t grant) const override {
    return grant == kGrant && offset + length <= kGranted;
  }
};

// Offered segments with other memory around them.
struct Arena {
  static constexpr uint64_t kBytes = kGap + kReadable + kGap + kWritable + kGap + kGuarded + kGap;

  explicit Arena(Engine& engine) : memory(kBytes, kSecret) {
    std::byte* at = memory.data() + kGap;
    readable = add(engine, at, kReadable, Access::kRead, "readable");
    at += kReadable + kGap;
    writable = add(engine, at, kWritable, Access::kWrite, "writable");
    at += kWritable + kGap;
    guarded = add(engine, at, kGuarded, Access::kWrite, "guarded", std::make_shared<FirstBytes>());
    before = memory;
  }
  std::shared_ptr<Segment> add(Engine& engine, std::byte* base, uint64_t size, Access access,
                               const std::string& name,
                               std::shared_ptr<const Guard> guard = nullptr) {
    for (uint64_t i = 0; i < size; ++i) base[i] = plain_byte();
    auto segment = std::make_shared<Segment>(base, size, true, access, name, nullptr);
    segment->guard = std::move(guard);
    engine.add(segment);
    return segment;
  }
  // All but the writable segment and what is granted is as it was.
  bool is_sound() const {
    const auto is_same = [&](const std::byte* from, const std::byte* to) {
      return std::memcmp(from, before.data() + (from - memory.data()),
                         static_cast<std::size_t>(to - from)) == 0;
    };
    return is_same(memory.data(), writable->base) &&
           is_same(writable->base + kWritable, guarded->base) &&
           is_same(guarded->base + kGranted, memory.data() + kBytes);
  }

  std::vector<std::byte> memory;
  std::vector<std::byte> before;
  std::shared_ptr<Segment> readable;
  std::shared_ptr<Segment> writable;
  std::shared_ptr<Segment> guarded;
};

// Reads what the engine answers and looks into it.
class Answers final : public net::Sink {
 public:
  bool closed = false;
  int frames = 0;

  void receive(int socket) {
    while (!closed) {
      const net::Io io = inbox_.receive(socket, *this);
      if (io == net::Io::kBlocked) return;
      closed = io == net::Io::kClosed;
    }
    CHECK(inbox_.problem() == nullptr);
  }

 private:
  const char* on_frame(const net::Frame& frame, std::span<const net::WireRange>,
                       net::Pieces& landing) override {
    ++frames;
    data_.assign(net::payload_bytes(frame), std::byte{0});
    landing.add(data_.data(), data_.size());
    return nullptr;
  }
  const char* on_payload_end() override {
    std::size_t row = 0;
    for (const std::byte byte : data_) {
      row = byte == kSecret ? row + 1 : 0;
      CHECK(row < kLeak);
    }
    return nullptr;
  }

  net::Inbox inbox_;
  std::vector<std::byte> data_;
};

net::Descriptor dial(const Engine& engine) {
  return net::connect_to(engine.address(), Clock::now() + std::chrono::seconds(10), [] {});
}

// Sends all, reading answers meanwhile, until the engine closes or takes no more for a while.
void send_all(int socket, const std::vector<std::byte>& bytes, Answers& answers) {
  for (std::size_t sent = 0; sent < bytes.size() && !answers.closed;) {
    const ssize_t n =
        send(socket, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n > 0) sent += static_cast<std::size_t>(n);
    if (n < 0 && errno != EAGAIN) return;
    answers.receive(socket);
    if (n > 0) continue;
    pollfd polled{socket, POLLIN | POLLOUT, 0};
    CHECK(poll(&polled, 1, 10000) == 1);  // it does not hang
  }
}

void receive_exactly(int socket, std::vector<std::byte>& bytes) {
  for (std::size_t have = 0; have < bytes.size();) {
    pollfd polled{socket, POLLIN, 0};
    CHECK(poll(&polled, 1, 10000) == 1);
    const ssize_t n = recv(socket, bytes.data() + have, bytes.size() - have, 0);
    CHECK(n > 0);
    have += static_cast<std::size_t>(n);
  }
}

net::Hello random_hello() {
  net::Hello hello;
  hello.lane = one_in(2) ? net::LaneKind::kSmall : net::LaneKind::kBulk;
  net::fill_random(hello.engine);
  net::fill_random(hello.nonce);
  hello.connection = 1;
  return hello;
}

net::Descriptor prove(const Engine& engine) {
  net::Descriptor socket = dial(engine);
  net::ClientHandshake handshake(random_hello(), kToken);
  while (handshake.wanted() > 0) {
    const auto output = handshake.output();
    if (!output.empty())
      CHECK(send(socket.get(), output.data(), output.size(), MSG_NOSIGNAL) ==
            static_cast<ssize_t>(output.size()));
    std::vector<std::byte> answer(handshake.wanted());
    receive_exactly(socket.get(), answer);
    handshake.take(answer);
    CHECK(handshake.status() == Status::kOk);
  }
  return socket;
}

uint64_t odd_number() {
  switch (below(6)) {
    case 0:
      return below(300);
    case 1:
      return UINT64_MAX - below(300);
    case 2:
      return (uint64_t{1} << below(64)) + below(3) - 1;
    case 3:
      return kWritable - below(300);
    default:
      return below(2 * kWritable);
  }
}

std::vector<std::byte> plain_bytes(uint64_t size) {
  std::vector<std::byte> bytes(size);
  for (std::byte& byte : bytes) byte = plain_byte();
  return bytes;
}

// As Arrivals takes it, with lengths that may lie.
std::vector<std::byte> odd_message() {
  std::vector<std::byte> message(18);
  const uint64_t number = one_in(4) ? odd_number() : below(2000);
  const uint64_t floor = one_in(4) ? odd_number() : below(2000);
  net::store(message.data(), number);
  net::store(message.data() + 8, floor);
  message[16] = std::byte(below(3));
  message[17] = std::byte(one_in(2) ? below(6) : below(256));
  const auto rest = plain_bytes(one_in(20) ? below(300'000) : below(40));
  message.insert(message.end(), rest.begin(), rest.end());
  return message;
}

// What a transport of the peer is asked, or its messages are: right, or anything else.
std::vector<std::byte> odd_question() {
  static constexpr std::array kAsked = {"", "tcp", "shm", "local", "file", "cuda", "messages"};
  std::string asked = kAsked[below(kAsked.size())];
  if (one_in(10)) asked.assign(below(256), 'x');
  std::vector<std::byte> body = plain_bytes(one_in(20) ? below(5000) : below(30));
  if (asked == "tcp" && one_in(2))
    body = encode(
        LaneQuestion{one_in(2) ? LaneAsk::kShut : LaneAsk::kLease, odd_number(), odd_number()});
  if (asked == "messages") body = odd_message();
  if (one_in(8)) body.resize(below(body.size() + 1));
  std::vector<std::byte> question = net::encode_question(asked, body);
  if (one_in(8) && !question.empty()) question[below(question.size())] = std::byte(below(256));
  if (one_in(16)) question.resize(below(question.size() + 1));
  return question;
}

// A frame that is right, or refused by its status, or, one in `rarely`, damaged: after that the
// engine closes. With its payload, more or less.
void add_frame(const Arena& arena, uint64_t rarely, std::vector<std::byte>& stream) {
  const bool damaged = one_in(rarely);
  const Segment& segment =
      one_in(3) ? *arena.guarded : (one_in(2) ? *arena.readable : *arena.writable);
  net::Frame frame;
  frame.kind = one_in(2) ? net::Kind::kRead : net::Kind::kWrite;
  if (one_in(4)) frame.kind = one_in(2) ? net::Kind::kLookup : net::Kind::kAsk;
  const bool moves = frame.kind == net::Kind::kRead || frame.kind == net::Kind::kWrite;
  frame.verified = moves && one_in(4);
  if (frame.kind == net::Kind::kWrite && one_in(2)) frame.grant = one_in(4) ? odd_number() : kGrant;
  std::vector<std::byte> question;
  frame.transfer = generator();
  frame.slice = static_cast<uint32_t>(generator());
  frame.slot = one_in(10) ? static_cast<uint32_t>(odd_number()) : segment.slot;
  frame.epoch = one_in(20) ? static_cast<uint32_t>(odd_number()) : segment.epoch;
  std::vector<net::WireRange> ranges;
  if (frame.kind == net::Kind::kLookup) {
    frame.bytes = one_in(3) ? 8 : 1 + below(255);
  } else if (frame.kind == net::Kind::kAsk) {
    question = odd_question();
    frame.bytes = question.size();
  } else {
    for (uint64_t count = 1 + below(one_in(5) ? 256 : 4); count > 0; --count) {
      const uint64_t length = 1 + below(one_in(4) ? 4000 : 50);
      ranges.push_back({one_in(8) ? odd_number() : below(segment.size - length + 1), length});
      if (damaged && one_in(4)) ranges.back().length = odd_number();
      frame.bytes += ranges.back().length;
    }
    if (damaged && one_in(4)) frame.bytes = odd_number();
  }
  std::vector<std::byte> head = net::encode(frame, ranges);
  if (damaged) {
    for (uint64_t changes = 1 + below(3); changes > 0; --changes)
      head[below(head.size())] = one_in(2) ? std::byte(below(256)) : std::byte(below(2) * 255);
    if (!one_in(4)) {  // with a checksum that is right again: the checks behind it have to hold
      std::memset(head.data() + 4, 0, 4);
      const uint32_t crc = crc32c(head);
      std::memcpy(head.data() + 4, &crc, 4);
    }
  }
  stream.insert(stream.end(), head.begin(), head.end());
  if (frame.kind == net::Kind::kRead) return;
  uint64_t payload = std::min<uint64_t>(frame.bytes, 1 << 20);
  if (damaged && one_in(4)) payload = below(2000);
  if (frame.kind == net::Kind::kAsk) {
    question.resize(payload);
    stream.insert(stream.end(), question.begin(), question.end());
    return;
  }
  if (frame.kind == net::Kind::kLookup && payload == 8) {
    for (const char c : std::string("readable")) stream.push_back(static_cast<std::byte>(c));
    return;
  }
  stream.insert(stream.end(), payload, plain_byte());
  if (!frame.verified) return;
  const std::span<const std::byte> sent(stream);
  const uint32_t crc = one_in(2) ? crc32c(sent.last(payload)) : static_cast<uint32_t>(generator());
  for (const std::byte byte : net::trailer(crc)) stream.push_back(byte);
}

void test_frames(const Engine& engine, const Arena& arena, int& answered) {
  const net::Descriptor socket = prove(engine);
  Answers answers;
  std::vector<std::byte> stream;
  const uint64_t rarely = one_in(3) ? 1000 : 12;
  for (uint64_t frames = 1 + below(40); frames > 0; --frames) add_frame(arena, rarely, stream);
  if (one_in(8)) stream.resize(1 + below(stream.size()));
  send_all(socket.get(), stream, answers);
  // Mostly the rest is waited for; else the engine finds the connection gone.
  if (!one_in(4)) {
    shutdown(socket.get(), SHUT_WR);
    const Clock::time_point end = Clock::now() + std::chrono::seconds(10);
    while (!answers.closed) {
      pollfd polled{socket.get(), POLLIN, 0};
      CHECK(poll(&polled, 1, 10000) == 1 && Clock::now() < end);
      answers.receive(socket.get());
    }
  }
  answered += answers.frames;
}

// No token: random bytes, or a damaged half of a handshake.
void test_garbage(const Engine& engine) {
  const net::Descriptor socket = dial(engine);
  net::ClientHandshake handshake(random_hello(), net::Token(32, std::byte{8}));
  std::vector<std::byte> bytes(handshake.output().begin(), handshake.output().end());
  if (one_in(2))
    for (std::byte& byte : bytes) byte = std::byte(below(256));
  for (uint64_t changes = below(4); changes > 0; --changes)
    bytes[below(bytes.size())] = std::byte(below(256));
  for (uint64_t more = one_in(2) ? below(500) : 0; more > 0; --more)
    bytes.push_back(std::byte(below(256)));
  if (one_in(4)) bytes.resize(below(bytes.size()));
  (void)send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
}

}  // namespace

int main(int argc, char** argv) {
  const int connections = argc > 1 ? std::atoi(argv[1]) : 2000;
  const uint64_t seed = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : std::random_device()();
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  generator.seed(seed);

  Engine engine({"127.0.0.1:0", kToken, 20});
  Arena arena(engine);
  Engine initiator({"127.0.0.1:0", kToken, 20});
  std::vector<std::byte> memory(kReadable);
  const auto local =
      std::make_shared<Segment>(memory.data(), kReadable, true, Access::kNone, "local", nullptr);
  initiator.add(local);
  int answered = 0;
  for (int i = 0; i < connections; ++i) {
    if (one_in(3))
      test_garbage(engine);
    else
      test_frames(engine, arena, answered);
    CHECK(arena.is_sound());
    if (i % 50 != 49) continue;
    for (Message message; engine.arrivals().receive(message, Clock::now());)
      CHECK(message.body.size() <= Arrivals::kMaxBodyBytes &&
            message.topic.size() <= Arrivals::kMaxTopicBytes);
    // An honest initiator is served as ever.
    const auto peer = initiator.connect(engine.address(), 10, [] {});
    std::vector<Request> requests;
    requests.push_back(
        {Op::kRead, local, peer->segment("readable", 10, [] {}), {{0, 0, kReadable}}});
    const auto batch = initiator.submit(std::move(requests), 10);
    CHECK(batch->wait(Clock::now() + std::chrono::seconds(20)) && batch->state() == State::kDone);
    CHECK(std::memcmp(local->base, arena.readable->base, kReadable) == 0);
  }
  std::printf("%d connections, %d answers\n", connections, answered);
  CHECK(answered > connections);
  engine.close();
  CHECK(arena.is_sound());
}
