// Closing waits for visits that are under way, and for no others; a killed visitor is forgotten.
#include "../net/control_page.h"

#include <sys/mman.h>

#include <atomic>
#include <thread>
#include <vector>

#include "check.h"
#include "child.h"

namespace {

using inlay::net::Clock;
using inlay::net::ControlLayout;
using inlay::net::ControlPage;
using inlay::net::Descriptor;
using inlay::net::VisitedPage;
using std::chrono::milliseconds;

Clock::time_point in(int ms) { return Clock::now() + milliseconds(ms); }

std::unique_ptr<VisitedPage> visit_page(const ControlPage& page) {
  std::string problem;
  auto visited = VisitedPage::map(page.descriptor(), problem);
  CHECK(visited != nullptr && problem.empty());
  return visited;
}

void test_visits() {
  ControlPage page;
  const auto visited = visit_page(page);
  CHECK(!visited->enter(3, 7));  // never opened
  page.open(3, 7);
  CHECK(visited->is_open(3, 7) && !visited->is_open(3, 8) && !visited->is_open(4, 7));
  CHECK(!visited->enter(3, 8) && !visited->enter(3, 0) && !visited->enter(5000, 7));
  {
    const auto visit = visited->enter(3, 7);
    CHECK(bool(visit));
    page.close(3, 7);
    CHECK(!visited->enter(3, 7));
    CHECK(!page.wait_unvisited(3, 7, in(20)));
    CHECK(page.wait_unvisited(3, 6, in(20)) && page.wait_unvisited(4, 7, in(20)));
  }
  CHECK(page.wait_unvisited(3, 7, in(0)));
  page.open(3, 8);
  page.close(3, 7);  // an old epoch does not close the new one
  page.open(4, 1);
  {
    const auto visit = visited->enter(4, 1);
    CHECK(!page.close_all(in(5)));
  }
  CHECK(!visited->enter(3, 8) && !visited->enter(4, 1));
  CHECK(page.close_all(in(0)));
}

// More visits at once than a line has cells.
void test_many_visits() {
  ControlPage page;
  page.open(1, 1);
  const auto visited = visit_page(page);
  {
    std::vector<VisitedPage::Visit> visits;
    for (int i = 0; i < 40; ++i) {
      visits.push_back(visited->enter(1, 1));
      CHECK(bool(visits.back()));
    }
    page.close(1, 1);
    CHECK(!page.wait_unvisited(1, 1, in(5)));
  }
  CHECK(page.wait_unvisited(1, 1, in(5)));
}

// The property that everything stands on: nobody touches the memory after the close.
void test_race() {
  ControlPage page;
  std::atomic<int> memory_is_there{0};
  std::atomic<bool> stop{false};
  std::atomic<uint32_t> epoch{0};
  std::atomic<uint64_t> touched{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t)
    threads.emplace_back([&] {
      const auto visited = visit_page(page);
      while (!stop.load()) {
        const auto visit = visited->enter(9, epoch.load());
        if (!visit) continue;
        CHECK(memory_is_there.load() == 1);
        touched.fetch_add(1);
        CHECK(memory_is_there.load() == 1);
      }
    });
  for (uint32_t round = 1; round <= 300; ++round) {
    const uint64_t before = touched.load();
    memory_is_there.store(1);
    page.open(9, round);
    epoch.store(round);
    const auto end = in(2);
    while (touched.load() == before && Clock::now() < end) std::this_thread::yield();
    page.close(9, round);
    CHECK(page.wait_unvisited(9, round, in(10000)));
    memory_is_there.store(0);
  }
  stop.store(true);
  for (std::thread& thread : threads) thread.join();
  CHECK(touched.load() > 100);
}

void test_killed_visitor() {
  ControlPage page;
  page.open(2, 5);
  // A child does not share descriptors of ours, so it gets the page as a peer does not: by a copy.
  const int shared = dup(page.descriptor().get());
  Child child([&](Child& parent) {
    std::string problem;
    const auto visited = VisitedPage::map(Descriptor(shared), problem);
    CHECK(visited != nullptr);
    const auto visit = visited->enter(2, 5);
    CHECK(bool(visit));
    parent.tell();
    for (;;) pause();
  });
  ::close(shared);
  child.hear();
  page.close(2, 5);
  CHECK(!page.wait_unvisited(2, 5, in(30)));
  ::kill(child.pid(), SIGSTOP);
  CHECK(!page.wait_unvisited(2, 5, in(30)));
  ::kill(child.pid(), SIGKILL);  // not collected: a zombie touches nothing either
  CHECK(page.wait_unvisited(2, 5, in(10000)));
  child.kill(SIGKILL);
}

void test_full_page() {
  ControlPage page;
  std::vector<std::unique_ptr<VisitedPage>> visitors;
  for (std::size_t i = 0; i < ControlLayout::kLines; ++i) visitors.push_back(visit_page(page));
  std::string problem;
  CHECK(VisitedPage::map(page.descriptor(), problem) == nullptr && !problem.empty());
  visitors.pop_back();
  CHECK(visit_page(page) != nullptr);
  const int no_page = memfd_create("short", 0);
  CHECK(VisitedPage::map(Descriptor(no_page), problem) == nullptr);
}

}  // namespace

int main() {
  test_visits();
  test_many_visits();
  test_race();
  test_killed_visitor();
  test_full_page();
}
