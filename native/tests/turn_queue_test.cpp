// Turns are had in the order in which they were asked for, whoever asks again and again.
#include "../transfer/turn_queue.h"

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "check.h"

namespace {

using inlay::net::Clock;
using inlay::transfer::TurnQueue;
using Turn = TurnQueue::Turn;

Clock::time_point in(std::chrono::milliseconds time) { return Clock::now() + time; }

void test_threads_in_a_loop() {
  constexpr int kThreads = 3;
  TurnQueue queue;
  std::atomic<int> granted{0};
  std::atomic<bool> over{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i)
    threads.emplace_back([&] {
      while (!over) {
        Turn turn(queue);
        CHECK(turn.wait(in(std::chrono::seconds(60))));
        ++granted;
      }
    });
  for (int i = 0; i < 500; ++i) {
    Turn turn(queue);
    const int before = granted;
    CHECK(turn.wait(in(std::chrono::seconds(60))));
    CHECK(granted - before <= kThreads);  // whoever came first, once each
    std::this_thread::sleep_for(std::chrono::microseconds(i % 5 * 20));
  }
  over = true;
  for (std::thread& thread : threads) thread.join();
}

void test_time_limits() {
  TurnQueue queue;
  auto first = std::make_unique<Turn>(queue);
  CHECK(first->wait(Clock::now()));
  {
    Turn second(queue);
    const auto begin = Clock::now();
    CHECK(!second.wait(in(std::chrono::milliseconds(20))));
    CHECK(Clock::now() - begin >= std::chrono::milliseconds(20));
  }
  Turn third(queue);
  CHECK(!third.wait(Clock::now()));
  first = nullptr;
  CHECK(third.wait(Clock::now()));  // the second has given up
}

void test_leaving() {
  TurnQueue queue;
  auto first = std::make_unique<Turn>(queue);
  std::atomic<bool> had{false};
  std::thread other([&] {
    Turn second(queue);
    had = second.wait(in(std::chrono::seconds(60)));
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  CHECK(!had);
  first = nullptr;
  other.join();
  CHECK(had);
}

}  // namespace

int main() {
  test_threads_in_a_loop();
  test_time_limits();
  test_leaving();
}
