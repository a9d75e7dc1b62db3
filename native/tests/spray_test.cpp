// The rules of the choice of paths one by one, and what holds on any history.
#include "../transfer/spray.h"

#include <array>
#include <cmath>
#include <deque>
#include <random>
#include <vector>

#include "check.h"

using inlay::kMillisecond;
using inlay::TimeNs;
using inlay::transfer::Choice;
using inlay::transfer::choose;
using inlay::transfer::PathEstimate;
using inlay::transfer::PathView;
using inlay::transfer::Ticket;

namespace {

constexpr std::size_t kKiB = 1024;
constexpr double kGigabyte = 1e9;

// Slices of one size, `depth` in flight, each served for `service`.
TimeNs run_steadily(PathEstimate& path, std::size_t bytes, TimeNs service, int depth, int slices,
                    TimeNs now) {
  std::deque<Ticket> queue;
  for (int i = 0; i < depth; ++i) queue.push_back(path.posted(bytes, now));
  for (int i = 0; i < slices; ++i) {
    now += service;
    path.completed(bytes, queue.front(), now);
    queue.pop_front();
    if (i + depth < slices) queue.push_back(path.posted(bytes, now));
  }
  CHECK(path.attempts() == 0 && path.inflight_bytes() == 0);
  return now;
}

void sizes_follow_the_link() {
  CHECK(PathEstimate(50e6, 1e-4, 0).slice_bytes() == 64 * kKiB);
  CHECK(PathEstimate(kGigabyte, 1e-4, 0).slice_bytes() == 256 * kKiB);
  CHECK(PathEstimate(100 * kGigabyte, 1e-4, 0).slice_bytes() == 2048 * kKiB);
  PathEstimate path(kGigabyte, 1e-6, 0);
  CHECK(path.window_bytes(0) == 4 * 256 * kKiB);  // nothing learnt
  const TimeNs now = run_steadily(path, 250'000, 250'000, 4, 100, 0);
  CHECK(path.beta1() > 0.99 && path.beta1() < 1.01);
  CHECK(path.window_bytes(now) > 9'900'000 && path.window_bytes(now) < 10'200'000);
}

void estimates_follow_the_path() {
  PathEstimate path(kGigabyte, 1e-6, 0);
  TimeNs now = run_steadily(path, 250'000, 1'000'000, 4, 4, 0);  // a sample: four times slower
  CHECK(path.beta1() > 3.9 && path.beta1() < 4.1);
  now = run_steadily(path, 250'000, 250'000, 4, 480, now);  // 120 ms, four half-lives, as promised
  CHECK(path.beta1() > 1.0 && path.beta1() < 1.25);
  CHECK(path.error_s() < 1e-3);
  path.age(now + 20'000 * kMillisecond);
  CHECK(path.beta1() < 1.07);
}

// A stall raises the estimate by one sample, not by what its length would say.
void stalls_are_no_rates() {
  PathEstimate path(kGigabyte, 1e-6, 0);
  TimeNs now = run_steadily(path, 250'000, 250'000, 4, 100, 0);
  now = run_steadily(path, 250'000, 200 * kMillisecond, 1, 1, now);
  CHECK(path.beta1() > 1.5 && path.beta1() < 2.5);
  run_steadily(path, 250'000, 250'000, 4, 480, now);
  CHECK(path.beta1() < 1.2);
}

// Single slices that are short beside beta0 say nothing of the rate.
void short_slices_teach_no_rate() {
  PathEstimate path(10 * kGigabyte, 15e-6, 0);
  TimeNs now = 0;
  std::mt19937 random(7);
  for (int i = 0; i < 10'000; ++i) {
    const Ticket ticket = path.posted(4096, now);
    now += 15'000 + static_cast<TimeNs>(random() % 20'000);
    path.completed(4096, ticket, now);
  }
  CHECK(path.beta1() == 1.0);
  CHECK(path.beta0_s() > 14e-6 && path.beta0_s() < 16e-6);
}

// Small slices on a lane of their own pass large ones; the time of the large ones is not lost.
void overtaking_hides_no_time() {
  PathEstimate path(50e6, 1e-4, 0);
  TimeNs now = 0;
  Ticket large = path.posted(64 * kKiB, now);
  for (int i = 0; i < 200; ++i) {
    const TimeNs end = now + 1'310'720;  // 64 KiB at 50 MB/s
    for (int small = 0; small < 4; ++small) {
      const Ticket ticket = path.posted(64, now + 200'000);
      now += 310'000;
      path.completed(64, ticket, now);
    }
    now = end;
    path.completed(64 * kKiB, large, now);
    large = path.posted(64 * kKiB, now);
  }
  CHECK(path.beta1() > 0.85 && path.beta1() < 1.1);
}

// A round trip longer than the window neither starves the path nor looks like a slow link.
void far_peers_are_not_slow() {
  PathEstimate path(200e6, 0.020, 0);
  struct Flying {
    Ticket ticket;
    TimeNs lands;
  };
  std::deque<Flying> flying;
  TimeNs now = 0;
  TimeNs wire = 0;
  std::size_t moved = 0;
  while (now < 1000 * kMillisecond) {
    while (path.has_room(64 * kKiB, now)) {
      wire = std::max(wire, now) + 327'680;
      flying.push_back({path.posted(64 * kKiB, now), wire + 20 * kMillisecond});
    }
    now = flying.front().lands;
    path.completed(64 * kKiB, flying.front().ticket, now);
    flying.pop_front();
    moved += 64 * kKiB;
  }
  CHECK(static_cast<double>(moved) > 0.9 * 200e6);
}

void the_best_path_is_waited_for() {
  PathEstimate fast(kGigabyte, 1e-5, 0);
  PathEstimate slow(1e6, 1e-5, 0);
  const std::array<PathView, 2> paths = {PathView{&slow}, PathView{&fast}};
  std::size_t taken = 0;
  for (;;) {
    const Choice choice = choose(paths, 64 << 20, 0);
    if (!choice) break;
    CHECK(choice.path == 1 && choice.bytes == 256 * kKiB);
    fast.posted(choice.bytes, 0);
    taken += choice.bytes;
  }
  CHECK(taken == fast.window_bytes(0));
  const std::array<PathView, 2> closed = {PathView{&slow}, PathView{&fast, 1.0, false}};
  CHECK(choose(closed, 64 << 20, 0).path == 0);
  const std::array<PathView, 1> none = {PathView{&fast, 1.0, false}};
  CHECK(!choose(none, 4096, 0) && !choose({}, 4096, 0));
}

void ties_penalties_and_tails() {
  PathEstimate a(kGigabyte, 1e-5, 0);
  PathEstimate b(kGigabyte, 1e-5, 0);
  const std::array<PathView, 2> alike = {PathView{&a}, PathView{&b}};
  CHECK(choose(alike, 64 << 20, 0).path == 0);
  const std::array<PathView, 2> dearer = {PathView{&a, 1.5}, PathView{&b}};
  CHECK(choose(dearer, 64 << 20, 0).path == 1);
  CHECK(choose(alike, 8 * 256 * kKiB, 0).bytes == 256 * kKiB);
  CHECK(choose(alike, 8 * 256 * kKiB - 1, 0).bytes == 128 * kKiB);
  CHECK(choose(alike, 100 * kKiB, 0).bytes == 64 * kKiB);
  CHECK(choose(alike, 100, 0).bytes == 100);
  const std::array<PathView, 1> only = {PathView{&a}};
  CHECK(choose(only, 256 * kKiB, 0).bytes == 256 * kKiB);
}

void old_paths_are_probed() {
  PathEstimate used(kGigabyte, 1e-5, 0);
  PathEstimate old(0.2 * kGigabyte, 1e-5, 0);
  const std::array<PathView, 2> paths = {PathView{&used}, PathView{&old}};
  const TimeNs now = 300 * kMillisecond;
  CHECK(choose(paths, 64 << 20, now).path == 0);  // nobody carries load
  used.posted(64 * kKiB, now - 1);
  CHECK(choose(paths, 256 * kKiB, now).path == 0);  // not for a small batch
  const Choice probe = choose(paths, 64 << 20, now);
  CHECK(probe.path == 1 && probe.bytes == 64 * kKiB);
  const Ticket ticket = old.posted(probe.bytes, now);
  CHECK(choose(paths, 64 << 20, now).path == 0);
  old.completed(probe.bytes, ticket, now + kMillisecond);
  CHECK(choose(paths, 64 << 20, now + 2 * kMillisecond).path == 0);
}

void windows_grow_again() {
  PathEstimate path(kGigabyte, 1e-5, 0);
  TimeNs now = run_steadily(path, 250'000, 250'000, 4, 100, 0);
  const std::size_t full = path.window_bytes(now);
  path.restart(now);
  CHECK(path.window_bytes(now) == 4 * path.slice_bytes());
  CHECK(path.window_bytes(now + 10 * kMillisecond) == 8 * path.slice_bytes());
  CHECK(path.window_bytes(now + 100 * kMillisecond) == full);
  CHECK(path.window_bytes(now + 1'000'000 * kMillisecond) == full);
  const Ticket ticket = path.posted(64 * kKiB, now);
  CHECK(!path.is_outlier(ticket, now + 10 * kMillisecond));
  CHECK(path.is_outlier(ticket, now + 40 * kMillisecond));
}

// Any history, clocks that run back included: nothing is lost, no estimate leaves its bounds, and a
// choice is never too large or without need empty.
void any_history(unsigned seed) {
  std::mt19937_64 random(seed);
  const auto below = [&](uint64_t bound) { return random() % bound; };
  std::vector<PathEstimate> paths;
  std::vector<PathView> views;
  const std::size_t num_paths = 1 + below(5);
  for (std::size_t i = 0; i < num_paths; ++i) {
    paths.emplace_back(std::pow(10.0, 5.0 + static_cast<double>(below(7))), 1e-5, 0);
  }
  for (PathEstimate& path : paths) views.push_back({&path, 1.0 + 0.5 * below(3), below(8) > 0});
  struct Posted {
    std::size_t path, bytes;
    Ticket ticket;
  };
  std::vector<Posted> posted;
  TimeNs now = 0;
  for (int step = 0; step < 3000; ++step) {
    now += static_cast<TimeNs>(below(100) == 0 ? below(30'000'000'000) : below(1'000'000));
    const TimeNs seen = std::max<TimeNs>(0, now - static_cast<TimeNs>(below(20'000)));
    if (below(2) == 0) {
      const std::size_t remaining = 1 + below(below(2) == 0 ? 100'000 : 100'000'000);
      const Choice choice = choose(views, remaining, seen);
      if (!choice) continue;
      const auto path = static_cast<std::size_t>(choice.path);
      CHECK(views[path].open);
      CHECK(choice.bytes >= 1 && choice.bytes <= remaining && choice.bytes <= 2048 * kKiB);
      CHECK(paths[path].has_room(choice.bytes, seen));
      posted.push_back({path, choice.bytes, paths[path].posted(choice.bytes, seen)});
    } else if (!posted.empty()) {
      const std::size_t at = below(posted.size());
      const Posted one = posted[at];
      posted.erase(posted.begin() + static_cast<std::ptrdiff_t>(at));
      PathEstimate& path = paths[one.path];
      if (path.is_outlier(one.ticket, seen)) path.restart(seen);
      if (below(10) == 0) {
        path.dropped(one.bytes);
      } else {
        path.completed(one.bytes, one.ticket, seen);
      }
      CHECK(path.beta1() >= 1.0 / 64 && path.beta1() <= 64.0);
      CHECK(path.beta0_s() >= 1e-6 && std::isfinite(path.beta0_s()));
      CHECK(path.error_s() >= 0.0 && std::isfinite(path.error_s()));
      CHECK(path.window_bytes(seen) >= 4 * path.slice_bytes());
      CHECK(path.window_bytes(seen) <= std::size_t{16} << 20);
    }
  }
  for (const Posted& one : posted) paths[one.path].dropped(one.bytes);
  for (const PathEstimate& path : paths) CHECK(path.inflight_bytes() == 0 && path.attempts() == 0);
}

}  // namespace

int main() {
  sizes_follow_the_link();
  estimates_follow_the_path();
  stalls_are_no_rates();
  short_slices_teach_no_rate();
  overtaking_hides_no_time();
  far_peers_are_not_slow();
  the_best_path_is_waited_for();
  ties_penalties_and_tails();
  old_paths_are_probed();
  windows_grow_again();
  for (unsigned seed = 0; seed < 50; ++seed) any_history(seed);
}
