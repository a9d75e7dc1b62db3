// The protocol between a device and the host, with experts that a test can hold up.
#include "../kernels/hand_over.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <limits>
#include <new>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "../core/errors.h"
#include "check.h"

namespace {

using namespace std::chrono_literals;
using namespace inlay::kernels;

constexpr HandOverSizes kSizes = {5, 3, 4, 4, 6};  // layers, tokens, hidden, top_k, experts

std::size_t at(int64_t index) { return static_cast<std::size_t>(index); }

// Expert e of layer j turns x into x + 10 j + e.
float expert(int64_t layer, int32_t id, float x) {
  return x + 10.0f * static_cast<float>(layer) + static_cast<float>(id);
}

void compute(const HostExperts& p) {
  for (int64_t t = 0; t < p.x_TM.rows; ++t)
    for (int64_t m = 0; m < p.x_TM.cols; ++m) {
      float sum = p.accumulate ? p.out_TM.row(t)[m] : 0.0f;
      for (int64_t k = 0; k < kSizes.top_k; ++k) {
        const int32_t id = p.ids_TK[t * kSizes.top_k + k];
        const float weight = p.routing_TK[t * kSizes.top_k + k];
        if (id >= 0) sum += weight * expert(p.layer, id, p.x_TM.row(t)[m]);
      }
      p.out_TM.row(t)[m] = sum;
    }
}

// A device, its host, and the memory between them. Token t chooses the experts t .. t + 3 with the
// weights 4, 3, 2 and 1 (of all, divided by 10); x of layer j is j + 1.
struct Seam {
  explicit Seam(HandOver::Compute with = compute)
      : x(at(2 * kSizes.tokens * kSizes.hidden)),
        ids(at(2 * kSizes.tokens * kSizes.top_k)),
        routing(ids.size()),
        out(x.size(), 99.0f),
        words(at(2 * kSizes.layers)),
        hand_over(kSizes, {x.data(), ids.data(), routing.data(), out.data(), words.data()},
                  std::move(with)) {}

  std::shared_ptr<Ticket> begin(int32_t deferred, std::chrono::nanoseconds timeout = 60s) {
    const std::vector<uint8_t> on_host(at(kSizes.layers * kSizes.experts), 1);
    const std::vector<int32_t> most(at(kSizes.tokens), deferred);
    return hand_over.begin({kSizes.tokens, on_host.data(), most.data(), nullptr, timeout});
  }

  void ask(int64_t layer) {
    const int64_t slot = layer % 2 * kSizes.tokens;
    for (int64_t t = 0; t < kSizes.tokens; ++t) {
      for (int64_t m = 0; m < kSizes.hidden; ++m)
        x[at((slot + t) * kSizes.hidden + m)] = static_cast<float>(layer + 1);
      for (int64_t k = 0; k < kSizes.top_k; ++k) {
        const std::size_t place = at((slot + t) * kSizes.top_k + k);
        ids[place] = static_cast<int32_t>((t + k) % kSizes.experts);
        routing[place] = static_cast<float>(4 - k) / 10;
      }
    }
    hand_over.ask(layer);
  }

  // What the host gives token t in a layer.
  float answer(int64_t layer, int64_t token) const {
    return out[at((layer % 2 * kSizes.tokens + token) * kSizes.hidden)];
  }

  std::vector<float> x;
  std::vector<int32_t> ids;
  std::vector<float> routing, out;
  std::vector<uint32_t> words;
  HandOver hand_over;
};

// The choices [first, end) of token t in a layer.
float part(int64_t layer, int64_t token, int64_t first, int64_t end) {
  float sum = 0;
  for (int64_t k = first; k < end; ++k)
    sum += static_cast<float>(4 - k) / 10 *
           expert(layer, static_cast<int32_t>((token + k) % kSizes.experts),
                  static_cast<float>(layer + 1));
  return sum;
}

void check_answer(const Seam& seam, int64_t layer, int64_t deferred) {
  const int64_t at_once = layer + 1 < kSizes.layers ? 4 - deferred : 4;
  for (int64_t t = 0; t < kSizes.tokens; ++t) {
    float expected = part(layer, t, 0, at_once);
    if (layer > 0) expected += part(layer - 1, t, 4 - deferred, 4);
    CHECK(std::abs(seam.answer(layer, t) - expected) < 1e-4f);
  }
}

void play(Seam& seam, int64_t deferred) {
  for (int64_t j = 0; j < kSizes.layers; ++j) {
    seam.ask(j);
    CHECK(seam.hand_over.wait_answer(j, 60s));
    check_answer(seam, j, deferred);
  }
}

template <typename Error>
bool fails_with(Ticket& ticket, const std::string& part_of_message) {
  try {
    ticket.wait(std::nullopt);
  } catch (const Error& error) {
    return std::string(error.what()).find(part_of_message) != std::string::npos;
  }
  return false;
}

void check_given_up(Seam& seam) {
  for (int64_t j = 0; j < kSizes.layers; ++j) CHECK(seam.hand_over.wait_answer(j, 0ns));
  for (const float value : seam.out) CHECK(value == 0.0f);
}

void test_sums() {
  Seam seam;
  for (int repeat = 0; repeat < 50; ++repeat)
    for (int32_t deferred = 0; deferred <= 2; ++deferred) {
      const auto ticket = seam.begin(deferred);
      play(seam, deferred);
      CHECK(ticket->wait(60s));
    }
  CHECK(seam.hand_over.immediate_time() > 0ns && seam.hand_over.deferred_time() > 0ns);
}

void test_two_stay() {
  Seam seam;
  const auto ticket = seam.begin(4);
  play(seam, 2);
  CHECK(ticket->wait(60s));
}

// A layer is answered while its deferred experts have not been computed, and the next one is not.
void test_deferred_after_the_answer() {
  std::atomic<bool> open{false};
  std::atomic<int> calls{0};
  Seam seam([&](const HostExperts& p) {
    const bool deferred = !p.accumulate && calls++ == 1;
    while (deferred && !open) std::this_thread::yield();
    compute(p);
  });
  const auto ticket = seam.begin(2);
  seam.ask(0);
  CHECK(seam.hand_over.wait_answer(0, 60s));
  check_answer(seam, 0, 2);
  seam.ask(1);
  CHECK(!seam.hand_over.wait_answer(1, 20ms));
  CHECK(seam.hand_over.deferred_time() == 0ns);
  open = true;
  CHECK(seam.hand_over.wait_answer(1, 60s));
  check_answer(seam, 1, 2);
  for (int64_t j = 2; j < kSizes.layers; ++j) {
    seam.ask(j);
    CHECK(seam.hand_over.wait_answer(j, 60s));
  }
  CHECK(ticket->wait(60s));
}

// Longer than threads spin.
void test_slow_device() {
  Seam seam;
  const auto ticket = seam.begin(1);
  for (int64_t j = 0; j < kSizes.layers; ++j) {
    std::this_thread::sleep_for(2ms);
    seam.ask(j);
    CHECK(seam.hand_over.wait_answer(j, 60s));
    check_answer(seam, j, 1);
  }
  CHECK(ticket->wait(60s));
}

void test_counts_beside_a_walk() {
  Seam seam;
  const std::size_t experts = at(kSizes.layers * kSizes.experts);
  std::vector<uint32_t> taken(experts), total(experts);
  for (int step = 0; step < 100; ++step) {
    const auto ticket = seam.begin(step % 3);
    std::thread taker([&] { seam.hand_over.take_counts(taken.data()); });
    play(seam, step % 3);
    taker.join();
    for (std::size_t e = 0; e < experts; ++e) total[e] += taken[e];
    CHECK(ticket->wait(60s));
  }
  seam.hand_over.take_counts(taken.data());
  uint32_t sum = 0;
  for (std::size_t e = 0; e < experts; ++e) sum += total[e] + taken[e];
  CHECK(sum == 100 * kSizes.layers * kSizes.tokens * kSizes.top_k);
}

// `change` makes what the device wants of layer 1 impossible.
template <typename Change>
void check_refused(Seam& seam, const std::string& message, const Change& change) {
  const auto ticket = seam.begin(2);
  seam.ask(0);
  CHECK(seam.hand_over.wait_answer(0, 60s));
  const std::size_t first = at(kSizes.tokens * kSizes.top_k);
  std::fill_n(seam.ids.begin() + static_cast<int64_t>(first), first, 0);
  change(seam.ids[first], seam.routing[first]);
  seam.hand_over.ask(1);
  CHECK(fails_with<inlay::ArgumentError>(*ticket, message));
  check_given_up(seam);
}

void test_errors() {
  Seam seam;
  check_refused(seam, "id 6 of token 0 in layer 1", [](int32_t& id, float&) { id = 6; });
  check_refused(seam, "of token 0 in layer 1 is not finite",
                [](int32_t&, float& weight) { weight = std::numeric_limits<float>::quiet_NaN(); });
  const auto ticket = seam.begin(1);
  play(seam, 1);
  CHECK(ticket->wait(60s));
}

void test_no_memory() {
  Seam seam([](const HostExperts&) { throw std::bad_alloc(); });
  const auto ticket = seam.begin(1);
  seam.ask(0);
  bool thrown = false;
  try {
    ticket->wait(std::nullopt);
  } catch (const std::bad_alloc&) {
    thrown = true;
  }
  CHECK(thrown);
  check_given_up(seam);
}

void test_timeout() {
  Seam seam;
  const auto ticket = seam.begin(1, 5ms);
  CHECK(fails_with<inlay::WaitTimeoutError>(*ticket, "layer 0 of the 5"));
  check_given_up(seam);
}

void test_cancel() {
  Seam seam;
  for (int repeat = 0; repeat < 20; ++repeat) {
    const auto ticket = seam.begin(1);
    seam.ask(0);
    CHECK(seam.hand_over.wait_answer(0, 60s));
    std::thread canceller([&] { seam.hand_over.cancel(); });
    CHECK(seam.hand_over.wait_answer(4, 60s));
    CHECK(fails_with<inlay::EngineError>(*ticket, "cancelled before layer 1"));
    canceller.join();
    check_given_up(seam);
  }
  const auto ticket = seam.begin(1);
  play(seam, 1);
  CHECK(ticket->wait(60s));
}

void test_one_walk_at_a_time() {
  Seam seam;
  const auto ticket = seam.begin(0);
  bool refused = false;
  try {
    seam.begin(0);
  } catch (const inlay::ArgumentError&) {
    refused = true;
  }
  CHECK(refused);
  play(seam, 0);
  CHECK(ticket->wait(60s));
}

}  // namespace

int main() {
  test_sums();
  test_two_stay();
  test_deferred_after_the_answer();
  test_slow_device();
  test_counts_beside_a_walk();
  test_errors();
  test_no_memory();
  test_timeout();
  test_cancel();
  test_one_walk_at_a_time();
}
