// Links that go up and down, in a network of this process alone; needs root for that.
#include "../net/links.h"

#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <string>

#include "check.h"

namespace {

using namespace inlay::net;
using Change = LinkEvent::Change;
using namespace std::chrono_literals;

constexpr int kSkipped = 77;

class Seen {
 public:
  void on_event(const LinkEvent& event) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !held_; });
    events_.insert({event.name, event.change});
    if (event.change != Change::kAddresses) up_[event.name] = event.change == Change::kUp;
    changed_.notify_all();
  }
  // Until the last that was told of it is that, at most 5 s; forget() forgets none of it.
  void wait_until(const std::string& name, bool up) {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, 5s, [&] { return up_.contains(name) && up_[name] == up; })) {
      std::fprintf(stderr, "%s is not told %s\n", name.c_str(), up ? "up" : "down");
      std::exit(1);
    }
  }
  // How long after now it came, at most 5 s.
  std::chrono::milliseconds wait_for(const std::string& name, Change change) {
    const auto start = Clock::now();
    std::unique_lock lock(mutex_);
    const std::pair wanted(name, change);
    if (!changed_.wait_for(lock, 5s, [&] { return events_.contains(wanted); })) {
      std::fprintf(stderr, "no event %d of %s\n", static_cast<int>(change), name.c_str());
      std::exit(1);
    }
    return std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - start);
  }
  void forget() {
    const std::lock_guard lock(mutex_);
    events_.clear();
  }
  bool any(const std::string& name) {
    const std::lock_guard lock(mutex_);
    return std::ranges::any_of(events_, [&](const auto& event) { return event.first == name; });
  }
  // The loop's thread stands still in its next call.
  void hold(bool held) {
    const std::lock_guard lock(mutex_);
    held_ = held;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::set<std::pair<std::string, Change>> events_;
  std::map<std::string, bool> up_;
  bool held_ = false;
};

void set_up(const char* name, bool up) {
  const int socket = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  ifreq request{};
  std::strncpy(request.ifr_name, name, IFNAMSIZ - 1);
  CHECK(ioctl(socket, SIOCGIFFLAGS, &request) == 0);
  const int flags = request.ifr_flags;
  request.ifr_flags = static_cast<short>(up ? flags | IFF_UP : flags & ~IFF_UP);
  CHECK(ioctl(socket, SIOCSIFFLAGS, &request) == 0);
  close(socket);
}

bool ip(const std::string& arguments) {
  return std::system(("ip " + arguments + " 2>/dev/null").c_str()) == 0;
}

void loopback(Seen& seen) {
  seen.wait_for("lo", Change::kDown);  // as it is in a new network
  set_up("lo", true);
  seen.wait_for("lo", Change::kUp);
  seen.wait_for("lo", Change::kAddresses);  // 127.0.0.1 comes by itself
}

void a_cut_and_its_repair(Seen& seen) {
  CHECK(ip("link set left up") && ip("link set right up"));
  seen.wait_for("left", Change::kUp);
  seen.wait_for("right", Change::kUp);
  seen.forget();
  CHECK(ip("addr add 10.9.8.1/24 dev left"));
  seen.wait_for("left", Change::kAddresses);
  CHECK(!seen.any("right"));
  for (int i = 0; i < 3; ++i) {
    seen.forget();
    set_up("right", false);
    const auto cut = seen.wait_for("left", Change::kDown);  // loses its carrier
    seen.forget();
    set_up("right", true);
    std::printf("cut seen after %d ms, repair after %d ms\n", static_cast<int>(cut.count()),
                static_cast<int>(seen.wait_for("left", Change::kUp).count()));
  }
}

void renamed_and_removed(Seen& seen) {
  // The kernel may put off what it tells of the other end, up to a second on a busy host: a change
  // that is undone in that time is told by nothing.
  seen.wait_until("right", true);
  CHECK(ip("link set left down"));
  seen.wait_until("right", false);
  CHECK(ip("link set left name port") && ip("link set port up"));
  seen.wait_until("port", true);
  seen.wait_until("right", true);
  seen.forget();
  CHECK(ip("link del port"));
  seen.wait_for("port", Change::kDown);
  seen.wait_for("right", Change::kDown);
}

// The kernel drops messages for one who does not read; the end is right all the same.
void lost_messages(Seen& seen) {
  CHECK(ip("link add left type veth peer name right"));
  CHECK(ip("link set left up") && ip("link set right up"));
  seen.wait_until("left", true);
  seen.wait_until("right", true);
  seen.hold(true);
  for (int i = 0; i < 600; ++i) set_up("lo", i % 2 != 0);
  CHECK(ip("link del left"));
  for (int i = 0; i < 601; ++i) set_up("lo", i % 2 != 0);
  seen.forget();
  seen.hold(false);
  seen.wait_for("right", Change::kDown);
  seen.wait_for("lo", Change::kDown);
  seen.forget();
  set_up("lo", true);
  seen.wait_for("lo", Change::kUp);
}

}  // namespace

int main() {
  if (unshare(CLONE_NEWNET) != 0) {
    std::printf("skipped: makes a network namespace, which needs root\n");
    return kSkipped;
  }
  Loop loop(0, [](Clock::time_point) { return Clock::time_point::max(); });
  Seen seen;
  LinkWatch watch(loop, [&](const LinkEvent& event) { seen.on_event(event); });
  loop.start();
  loopback(seen);
  if (ip("link add left type veth peer name right")) {
    a_cut_and_its_repair(seen);
    renamed_and_removed(seen);
    lost_messages(seen);
  } else {
    std::printf("left out: pairs of links, which need iproute2 and veth\n");
  }
  seen.hold(false);
  loop.stop();
}
