// Connections that wait while the process has no descriptor left: they are accepted later, and the
// loop does not ask for them all the time.
#include "../net/acceptor.h"

#include <sys/resource.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "../net/side_channel.h"
#include "check.h"

namespace {

using namespace inlay::net;
using namespace std::chrono_literals;

class Taker final : public Handler {
 public:
  Taker(Loop& loop, Descriptor socket) : acceptor(loop, std::move(socket)) {}

  bool on_events(uint32_t) override {
    ++events;
    acceptor.accept([this](Descriptor socket) {
      const std::lock_guard lock(mutex);
      taken.push_back(std::move(socket));
    });
    return false;
  }
  // Whether so many came within 5 s.
  bool has(std::size_t count) {
    for (const auto end = Clock::now() + 5s; Clock::now() < end;) {
      {
        const std::lock_guard lock(mutex);
        if (taken.size() == count) return true;
      }
      std::this_thread::sleep_for(1ms);
    }
    return false;
  }

  Acceptor acceptor;
  std::atomic<int> events{0};
  std::mutex mutex;
  std::vector<Descriptor> taken;
};

}  // namespace

int main() {
  SideListener listener = listen_side();
  std::shared_ptr<Taker> taker;
  Loop loop(0, [&](auto) {
    taker->acceptor.resume();
    return Clock::time_point::max();
  });
  taker = std::make_shared<Taker>(loop, std::move(listener.socket));
  taker->acceptor.start(taker);
  loop.start();

  // More than are accepted in one go.
  std::string problem;
  std::vector<Descriptor> callers;
  const auto call = [&] {
    callers.push_back(connect_side(listener.name, Clock::now() + 5s, problem));
    CHECK(callers.back().valid());
  };
  for (int i = 0; i < 40; ++i) call();
  CHECK(taker->has(40));

  call();
  CHECK(taker->has(41));
  rlimit before{};
  CHECK(getrlimit(RLIMIT_NOFILE, &before) == 0);
  // One number is left, for the caller: the system gives the lowest that is free.
  const rlimit none{static_cast<rlim_t>(taker->taken.back().get()) + 2, before.rlim_max};
  CHECK(setrlimit(RLIMIT_NOFILE, &none) == 0);
  call();
  std::this_thread::sleep_for(350ms);
  const int asked = taker->events.exchange(0);
  CHECK(asked >= 1 && asked <= 50);
  CHECK(setrlimit(RLIMIT_NOFILE, &before) == 0);
  CHECK(taker->has(42));

  loop.stop();
  CHECK(taker->acceptor.stop() && !taker->acceptor.stop());
  CHECK(!connect_side(listener.name, Clock::now() + 1s, problem).valid());
}
