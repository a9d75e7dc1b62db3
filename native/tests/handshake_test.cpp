// The handshake as two state machines that talk through memory.
#include "../net/handshake.h"

#include <functional>
#include <random>

#include "../net/bytes.h"
#include "check.h"

namespace {

using namespace inlay;
using namespace inlay::net;
using Bytes = std::vector<std::byte>;
using State = ServerHandshake::State;

Token token(int fill) { return Token(32, static_cast<std::byte>(fill)); }

template <typename Array>
Array filled(int value) {
  Array array;
  array.fill(static_cast<std::byte>(value));
  return array;
}

Hello hello() {
  Hello hello;
  hello.lane = LaneKind::kBulk;
  hello.engine = filled<EngineId>(1);
  hello.connection = 42;
  hello.nonce = filled<Nonce>(2);
  return hello;
}

// Changes message `index` (0 HELLO, 1 answer, 2 challenge, 3 PROOF, 4 answer) on its way.
using Change = std::function<void(int index, Bytes& message)>;

struct Result {
  Status client;
  State server;
  bool client_over;
  Hello hello;
  EngineId target;
};

Result talk(const Token& client_token, const Token& server_token, const Change& change = {},
            const Hello& greeting = hello()) {
  ClientHandshake client(greeting, client_token);
  ServerHandshake server(filled<EngineId>(3), filled<Nonce>(4), server_token);
  int index = 0;
  while (client.wanted() > 0 && client.status() == Status::kOk) {
    Bytes out(client.output().begin(), client.output().end());
    if (change) change(index, out);
    ++index;
    CHECK(out.size() == server.wanted());
    server.take(out);
    Bytes in(server.output().begin(), server.output().end());
    std::size_t at = 0;
    while (client.wanted() > 0 && client.status() == Status::kOk &&
           in.size() - at >= client.wanted()) {
      Bytes part(in.begin() + static_cast<std::ptrdiff_t>(at),
                 in.begin() + static_cast<std::ptrdiff_t>(at + client.wanted()));
      at += part.size();
      if (change) change(index, part);
      ++index;
      client.take(part);
      if (!client.output().empty()) break;
    }
    if (server.state() != State::kRunning) break;
  }
  return {client.status(), server.state(), client.wanted() == 0, server.hello(), client.target()};
}

void test_good() {
  const Result result = talk(token(9), token(9));
  CHECK(result.client == Status::kOk && result.client_over && result.server == State::kAccepted);
  CHECK(result.hello.lane == LaneKind::kBulk && result.hello.connection == 42);
  CHECK(result.hello.engine == filled<EngineId>(1) && result.target == filled<EngineId>(3));
}

void test_other_token() {
  const Result result = talk(token(9), token(8));
  CHECK(result.client == Status::kPeerRefused && result.server != State::kAccepted);
  // A client that goes on regardless is refused by the server.
  ServerHandshake server(filled<EngineId>(3), filled<Nonce>(4), token(8));
  const ClientHandshake client(hello(), token(9));
  server.take(client.output());
  CHECK(server.state() == State::kRunning && server.wanted() == 32);
  server.take(Bytes(32));
  CHECK(server.state() == State::kRefused);
}

// What the server sends proves nothing about the client: its own proof does not pass for one.
void test_reflection() {
  const Token shared = token(9);
  const ClientHandshake client(hello(), shared);
  ServerHandshake server(filled<EngineId>(3), filled<Nonce>(4), shared);
  server.take(client.output());
  const Bytes challenge(server.output().begin(), server.output().end());
  server.take(Bytes(challenge.end() - 32, challenge.end()));
  CHECK(server.state() == State::kRefused);
}

void test_replay() {
  Bytes proof;
  const Token shared = token(9);
  talk(shared, shared, [&](int index, Bytes& message) {
    if (index == 3) proof = message;
  });
  ServerHandshake server(filled<EngineId>(3), filled<Nonce>(5), shared);  // another nonce
  server.take(ClientHandshake(hello(), shared).output());
  server.take(proof);
  CHECK(server.state() == State::kRefused);
}

void test_versions() {
  Hello newer = hello();
  newer.min_version = kMaxVersion + 1;
  newer.max_version = kMaxVersion + 5;
  const Token shared = token(9);
  ClientHandshake client(newer, shared);
  ServerHandshake server(filled<EngineId>(3), filled<Nonce>(4), shared);
  server.take(client.output());
  CHECK(server.state() == State::kRefused && server.output().size() == client.wanted());
  client.take(server.output());
  CHECK(client.status() == Status::kProtocolVersion);
  CHECK(client.target_min() == kMinVersion && client.target_max() == kMaxVersion);
  newer.min_version = kMaxVersion;  // reaches back to ours
  CHECK(talk(shared, shared, {}, newer).server == State::kAccepted);
}

void test_garbage() {
  ServerHandshake server(filled<EngineId>(3), filled<Nonce>(4), token(9));
  Bytes request(server.wanted(), std::byte{'G'});
  server.take(request);
  CHECK(server.state() == State::kNotInlay && server.output().empty());
  const Token shared = token(9);
  ClientHandshake client(hello(), shared);
  client.take(Bytes(client.wanted(), std::byte{'H'}));
  CHECK(client.status() == Status::kProtocol);
}

// Any one bit that changes on the way keeps one of the two from accepting.
void test_every_flipped_bit_is_seen() {
  const std::size_t sizes[] = {72, 16, 80, 32, 16};
  for (int message = 0; message < 5; ++message)
    for (std::size_t bit = 0; bit < 8 * sizes[message]; ++bit) {
      // Not proven: the padding of HELLO is covered only as far as it is read, and the versions in
      // answers after the challenge serve error messages alone.
      const std::size_t byte = bit / 8;
      if (message == 0 && byte >= 13 && byte < 16) continue;
      if ((message == 1 || message == 4) && byte >= 10) continue;
      const Result result = talk(token(9), token(9), [&](int index, Bytes& bytes) {
        if (index != message) return;
        CHECK(bytes.size() == sizes[message]);
        bytes[byte] ^= std::byte(1U << (bit % 8));
      });
      CHECK(result.client != Status::kOk || result.server != State::kAccepted ||
            !result.client_over);
    }
}

void test_random_bytes() {
  std::mt19937_64 random(1);
  for (int i = 0; i < 2000; ++i) {
    ServerHandshake server(filled<EngineId>(3), filled<Nonce>(4), token(9));
    const ClientHandshake client(hello(), token(9));
    Bytes first(client.output().begin(), client.output().end());
    for (std::size_t at = 8; at < first.size(); ++at) first[at] = std::byte(random());
    server.take(first);
    while (server.wanted() > 0) {
      Bytes next(server.wanted());
      for (std::byte& byte : next) byte = std::byte(random());
      server.take(next);
    }
    CHECK(server.state() != State::kAccepted);
  }
}

}  // namespace

int main() {
  test_good();
  test_other_token();
  test_reflection();
  test_replay();
  test_versions();
  test_garbage();
  test_every_flipped_bit_is_seen();
  test_random_bytes();
}
