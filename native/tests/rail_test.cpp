// The table of rail.h line by line, the times of its probes, and what holds on any history.
#include "../transfer/rail.h"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <random>

#include "check.h"

using inlay::kMillisecond;
using inlay::TimeNs;
using inlay::transfer::is_silent;
using inlay::transfer::kNumRailEvents;
using inlay::transfer::name_of;
using inlay::transfer::Rail;
using inlay::transfer::RailActions;
using inlay::transfer::RailEvent;
using inlay::transfer::RailState;

namespace {

using enum RailEvent;

constexpr RailActions kNothing = {};
constexpr RailActions kAnnounce = {.announce = true};
constexpr RailActions kCloseAnnounce = {.close = true, .announce = true};
constexpr RailActions kCloseOnly = {.close = true};
constexpr RailActions kRestart = {.restart = true};
constexpr RailActions kBack = {.restart = true, .announce = true};
constexpr RailActions kProbe = {.close = true, .connect = true};

struct Step {
  TimeNs at_ms;
  RailEvent event;
  RailActions actions;
  RailState state;
  bool others_ready = true;
};

void follow(std::initializer_list<Step> steps) {
  Rail rail(0);
  for (const Step& step : steps) {
    CHECK(rail.on(step.event, step.at_ms * kMillisecond, step.others_ready) == step.actions);
    CHECK(rail.state() == step.state);
  }
}

void the_table() {
  constexpr auto kConnecting = RailState::kConnecting;
  constexpr auto kReady = RailState::kReady;
  constexpr auto kPaused = RailState::kPaused;
  constexpr auto kClosed = RailState::kClosed;

  for (const RailEvent event : {kRefused, kError, kLinkDown}) {
    follow({{10, event, kCloseAnnounce, kPaused}});
    follow({{10, kConnected, kAnnounce, kReady}, {20, event, kCloseAnnounce, kPaused}});
  }
  follow({{149, kTick, kNothing, kConnecting}, {150, kTick, kCloseAnnounce, kPaused}});
  for (const RailEvent event : {kSilence, kSuspect}) {
    follow({{10, event, kNothing, kConnecting},
            {20, kConnected, kAnnounce, kReady},
            {30, event, kNothing, kReady, false},
            {30, event, kCloseAnnounce, kPaused, true}});
  }
  follow({{10, kConnected, kAnnounce, kReady},
          {20, kOutlier, kRestart, kReady},
          {20, kConnected, kNothing, kReady},
          {20, kLinkUp, kNothing, kReady},
          {5000, kTick, kNothing, kReady},
          {5000, kError, kCloseAnnounce, kPaused},
          {5000, kConnected, kNothing, kPaused},  // of a connection that was closed
          {5000, kError, kNothing, kPaused},
          {5099, kTick, kNothing, kPaused},
          {5100, kTick, kProbe, kPaused},
          {5110, kConnected, kBack, kReady}});
  for (const RailEvent event : {kRefused, kError, kSilence, kLinkDown}) {
    follow({{0, kError, kCloseAnnounce, kPaused},
            {100, kTick, kProbe, kPaused},
            {110, event, kCloseOnly, kPaused},
            {209, kTick, kNothing, kPaused},
            {210, kTick, kProbe, kPaused},
            {359, kTick, kNothing, kPaused},
            {360, kTick, kCloseOnly, kPaused},  // 150 ms without an answer
            {560, kTick, kProbe, kPaused}});
  }
  follow({{0, kLinkDown, kCloseAnnounce, kPaused},
          {20, kLinkUp, kProbe, kPaused},
          {21, kLinkUp, kProbe, kPaused},
          {30, kConnected, kBack, kReady}});
  follow({{10, kConnected, kAnnounce, kReady},
          {20, kHold, kAnnounce, kPaused},
          {30, kError, kNothing, kPaused},
          {90'000, kTick, kNothing, kPaused},
          {90'000, kLinkUp, kNothing, kPaused},
          {90'000, kRelease, kProbe, kPaused},
          {90'010, kConnected, kBack, kReady},
          {90'020, kRelease, kNothing, kReady}});
  follow({{0, kError, kCloseAnnounce, kPaused},
          {50, kHold, kAnnounce, kPaused},
          {60, kHold, kNothing, kPaused},
          {1000, kTick, kNothing, kPaused},
          {1000, kRelease, kProbe, kPaused},
          {1010, kHold, kCloseAnnounce, kPaused}});
  follow({{10, RailEvent::kClose, kCloseAnnounce, kClosed}});
}

// Every event in a row on a closed rail.
void closed_is_the_end() {
  Rail rail(0);
  CHECK(rail.on(kConnected, 1) == kAnnounce);
  CHECK(rail.on(RailEvent::kClose, 2) == kCloseAnnounce);
  CHECK(rail.next_tick() == Rail::kNever);
  for (std::size_t i = 0; i < kNumRailEvents; ++i) {
    CHECK(rail.on(static_cast<RailEvent>(i), 1000 * kMillisecond) == kNothing);
    CHECK(rail.state() == RailState::kClosed);
  }
}

// Probes that are refused at once: the gaps between them.
void probes_back_off() {
  Rail rail(0);
  TimeNs now = 0;
  CHECK(rail.on(kRefused, now) == kCloseAnnounce);
  constexpr std::array<TimeNs, 7> kGaps = {100, 100, 200, 400, 500, 500, 500};
  for (const TimeNs gap : kGaps) {
    CHECK(rail.next_tick() == now + gap * kMillisecond);
    now = rail.next_tick();
    CHECK(rail.on(kTick, now) == kProbe);
    CHECK(rail.on(kRefused, now) == kCloseOnly);
  }
  while (now < 60'000 * kMillisecond) {
    CHECK(rail.next_tick() <= now + 500 * kMillisecond);
    now = rail.next_tick();
    rail.on(kTick, now);
    rail.on(kRefused, now);
  }
  CHECK(rail.next_tick() == now + 2000 * kMillisecond);
  // A flapping rail keeps its count; half a minute of peace takes most of it away.
  rail.on(kTick, rail.next_tick());
  rail.on(kConnected, now);
  rail.on(kError, now + 1000 * kMillisecond);
  CHECK(rail.next_tick() == now + 1500 * kMillisecond);
  rail.on(kTick, rail.next_tick());
  rail.on(kConnected, now + 2000 * kMillisecond);
  rail.on(kError, now + 34'000 * kMillisecond);
  CHECK(rail.next_tick() == now + 34'100 * kMillisecond);
}

void silence() {
  CHECK(!is_silent(0, 10'000 * kMillisecond, 0));
  CHECK(!is_silent(2, 16 * kMillisecond, kMillisecond));
  CHECK(is_silent(2, 17 * kMillisecond, kMillisecond));
  CHECK(!is_silent(2, 17 * kMillisecond, 6 * kMillisecond));
  CHECK(!is_silent(1, 60 * kMillisecond, kMillisecond));
  CHECK(is_silent(1, 61 * kMillisecond, kMillisecond));
  CHECK(!is_silent(1, 61 * kMillisecond, 30 * kMillisecond));
}

// Any history: who is not ready or closed has a time to look again, unless an operator holds it; a
// connection that was asked for is answered for or closed; a rail that is reachable comes back.
void any_history(unsigned seed) {
  std::mt19937_64 random(seed);
  const auto below = [&](uint64_t bound) { return random() % bound; };
  Rail rail(0);
  TimeNs now = 0;
  bool held = false;
  for (int step = 0; step < 300; ++step) {
    now += static_cast<TimeNs>(below(200)) * kMillisecond;
    const auto event = static_cast<RailEvent>(below(kNumRailEvents - 1));  // all but kClose
    const RailState before = rail.state();
    const RailActions actions = rail.on(event, now, below(2) == 0);
    if (event == kHold) held = true;
    if (event == kRelease) held = false;
    CHECK((before != rail.state()) <= actions.announce);
    CHECK(!actions.connect || actions.close);
    CHECK(!(rail.state() == RailState::kReady && actions.close));
    if (rail.state() == RailState::kReady || held) {
      CHECK(rail.next_tick() == Rail::kNever);
    } else {
      CHECK(rail.next_tick() <= now + 2000 * kMillisecond);
    }
    CHECK(rail.retries() <= 6.0);
  }
  if (held) rail.on(kRelease, now);
  const TimeNs returned = now;
  while (rail.state() != RailState::kReady) {
    now = std::max(now, rail.next_tick());
    if (rail.on(kTick, now).connect) rail.on(kConnected, now + kMillisecond);
    CHECK(now <= returned + 3000 * kMillisecond);
  }
}

}  // namespace

int main() {
  the_table();
  closed_is_the_end();
  probes_back_off();
  silence();
  for (unsigned seed = 0; seed < 200; ++seed) any_history(seed);
  CHECK(name_of(RailEvent::kClose) == "close" && name_of(kTick) == "tick");
  CHECK(name_of(RailState::kClosed) == "closed");
}
