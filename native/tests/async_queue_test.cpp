// Order, waiting, errors, idleness, fork and exit of the queue.
#include "../kernels/async_queue.h"

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "../core/errors.h"
#include "../kernels/thread_pool.h"
#include "check.h"

// A forked child may not start threads under the thread sanitizer.
#if defined(__SANITIZE_THREAD__)
constexpr bool kCanFork = false;
#else
constexpr bool kCanFork = true;
#endif

namespace {

using namespace std::chrono_literals;
using inlay::kernels::AsyncQueue;
using inlay::kernels::ThreadPool;
using inlay::kernels::Ticket;
using TicketPointer = std::shared_ptr<Ticket>;

TicketPointer submit(std::function<void()> work) {
  return AsyncQueue::instance().submit(std::move(work));
}

// Work that lasts until the gate opens.
class Gate {
 public:
  TicketPointer submit_waiter() {
    return submit([this] {
      while (!open_) std::this_thread::sleep_for(100us);
    });
  }
  void open() { open_ = true; }

 private:
  std::atomic<bool> open_{false};
};

void test_in_order() {
  std::vector<int> order;
  std::vector<TicketPointer> tickets;
  for (int i = 0; i < 500; ++i) tickets.push_back(submit([&order, i] { order.push_back(i); }));
  CHECK(tickets.back()->wait(std::nullopt));
  for (const TicketPointer& ticket : tickets) CHECK(ticket->done() && ticket->wait(0ns));
  CHECK(order.size() == 500);
  for (int i = 0; i < 500; ++i) CHECK(order[static_cast<std::size_t>(i)] == i);
}

// From several threads: none is lost, and each finds its own work done.
void test_several_submitters() {
  std::atomic<int> total{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&total] {
      for (int i = 0; i < 200; ++i) {
        int mine = 0;
        CHECK(submit([&] { mine = i + 1, ++total; })->wait(std::nullopt));
        CHECK(mine == i + 1);
      }
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(total == 800);
}

void test_timeout() {
  Gate gate;
  const TicketPointer held = gate.submit_waiter();
  const TicketPointer behind = submit([] {});
  CHECK(!held->wait(0ns));
  const auto begin = std::chrono::steady_clock::now();
  CHECK(!behind->wait(20ms));
  CHECK(std::chrono::steady_clock::now() - begin >= 20ms);
  CHECK(!held->done() && !behind->done());
  gate.open();
  CHECK(behind->wait(std::nullopt) && held->done());
}

// The error comes out of every wait; the queue goes on.
void test_errors() {
  const TicketPointer ticket = submit([] { throw std::runtime_error("no such thing"); });
  const TicketPointer next = submit([] {});
  for (int repeat = 0; repeat < 2; ++repeat) {
    std::string message;
    try {
      ticket->wait(std::nullopt);
    } catch (const std::runtime_error& error) {
      message = error.what();
    }
    CHECK(message == "no such thing");
  }
  CHECK(next->wait(std::nullopt));
}

// What the work holds is gone when its ticket is done.
void test_work_is_destroyed_first() {
  for (int repeat = 0; repeat < 100; ++repeat) {
    auto held = std::make_shared<int>(1);
    const std::weak_ptr<int> watch = held;
    const TicketPointer ticket = submit([held = std::move(held)] {});
    CHECK(ticket->wait(std::nullopt));
    CHECK(watch.expired());
  }
}

// The queue's work and other callers take turns on the pool.
void test_beside_other_callers() {
  std::atomic<int64_t> sum{0};
  const auto loop = [&sum] {
    ThreadPool::Session session(ThreadPool::instance());
    session.parallel_for(50, [&sum](int64_t item, int) { sum += item; });
  };
  TicketPointer last;
  for (int repeat = 0; repeat < 100; ++repeat) {
    last = submit(loop);
    loop();
  }
  CHECK(last->wait(std::nullopt));
  CHECK(sum == 200 * (49 * 50 / 2));
}

void test_idle_is_idle() {
  CHECK(submit([] {})->wait(std::nullopt));
  std::this_thread::sleep_for(20ms);
  const std::clock_t begin = std::clock();
  std::this_thread::sleep_for(200ms);
  CHECK(std::clock() - begin < CLOCKS_PER_SEC / 20);
}

void expect_child(void (*child_body)()) {
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) child_body();
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 7);
}

// A child has a queue of its own, and is told that it cannot wait for its parent's work.
void test_fork() {
  static Gate gate;
  static TicketPointer held;
  held = gate.submit_waiter();
  expect_child([] {
    bool refused = false;
    try {
      held->wait(std::nullopt);
    } catch (const inlay::ArgumentError&) {
      refused = true;
    }
    CHECK(refused);
    CHECK(submit([] {})->wait(std::nullopt));
    _exit(7);
  });
  gate.open();
  CHECK(held->wait(std::nullopt));
}

// An orderly exit, destructors and all, amid work.
void test_exit_with_work_pending() {
  expect_child([] {
    for (int i = 0; i < 100; ++i)
      submit([] {
        ThreadPool::Session session(ThreadPool::instance());
        session.parallel_for(1000, [](int64_t, int) { std::this_thread::sleep_for(1ms); });
      });
    std::this_thread::sleep_for(5ms);
    std::exit(7);
  });
}

}  // namespace

int main() {
  test_in_order();
  test_several_submitters();
  test_timeout();
  test_errors();
  test_work_is_destroyed_first();
  test_beside_other_callers();
  test_idle_is_idle();
  if (kCanFork) {
    test_fork();
    test_exit_with_work_pending();
  }
}
