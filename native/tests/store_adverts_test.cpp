// What a node tells of a segment: whole, in order, and never as whole where something was lost.
#include <algorithm>
#include <chrono>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "../store/adverts.h"
#include "check.h"

using namespace inlay;
using namespace inlay::store;

namespace {

constexpr std::size_t kRecords = 10'000;

// A way to nobody: keeps what was asked, and answers when it is full.
class ScriptedLink final : public MasterLink {
 public:
  std::size_t holds = 0;  // questions before it answers one
  std::size_t fails = 0;  // the question of this number, from 1
  std::size_t most = 0;   // questions that waited for their answer
  std::vector<uint64_t> offsets;
  std::vector<bool> last;

  void tell(const Touch&) override {}
  Terms terms() const override { return {}; }
  bool connected() const override { return true; }
  std::string address() const override { return "nowhere"; }
  void close() override {}

 private:
  Answer wait(const Question& question, Clock::time_point, bool) override {
    CHECK(waiting_.empty());  // the last question comes behind the answers to all others
    keep(question);
    return Advertise::Answer{true};
  }
  void start(const Question& question, Clock::time_point, Then then) override {
    keep(question);
    waiting_.push_back(std::move(then));
    most = std::max(most, waiting_.size());
    if (waiting_.size() < holds) return;
    for (Then& one : std::exchange(waiting_, {})) {
      ++answered_;
      const bool failed = answered_ == fails;
      one(failed ? StoreStatus::kTimeout : StoreStatus::kOk, Advertise::Answer{true});
    }
  }
  void keep(const Question& question) {
    const auto& some = std::get<Advertise>(question);
    for (const Advertise::Record& record : some.records) offsets.push_back(record.offset);
    last.push_back(some.last);
  }

  std::vector<Then> waiting_;
  std::size_t answered_ = 0;
};

void add_all(Adverts& adverts) {
  for (std::size_t i = 0; i < kRecords; ++i)
    adverts.add({.key = i % 2 == 0 ? "key" : std::string_view(), .offset = 64 * i});
}

void all_arrive_in_order() {
  ScriptedLink link;
  link.holds = 4;
  Adverts adverts(link, 7, Clock::now() + std::chrono::seconds(5), std::chrono::seconds(5));
  add_all(adverts);
  CHECK(adverts.finish() == kRecords / 2);  // the others are dead
  CHECK(link.offsets.size() == kRecords);
  for (std::size_t i = 0; i < kRecords; ++i) CHECK(link.offsets[i] == 64 * i);
  for (std::size_t i = 0; i < link.last.size(); ++i)
    CHECK(link.last[i] == (i + 1 == link.last.size()));
  CHECK(link.most == 4);
}

void a_lost_question_is_not_passed_over() {
  for (std::size_t lost = 1; lost <= 4; ++lost) {
    ScriptedLink link;
    link.holds = 2;
    link.fails = lost;
    bool failed = false;
    try {
      Adverts adverts(link, 7, Clock::now() + std::chrono::seconds(5), std::chrono::seconds(5));
      add_all(adverts);
      (void)adverts.finish();
    } catch (const StoreFailure& failure) {
      failed = failure.status == StoreStatus::kTimeout;
    }
    CHECK(failed);
    for (const bool last : link.last) CHECK(!last);
  }
}

void nothing_is_told_as_such() {
  ScriptedLink link;
  Adverts adverts(link, 7, Clock::now() + std::chrono::seconds(5), std::chrono::seconds(5));
  CHECK(adverts.finish() == 0);
  CHECK(link.last == std::vector<bool>{true});
}

}  // namespace

int main() {
  all_arrive_in_order();
  a_lost_question_is_not_passed_over();
  nothing_is_told_as_such();
}
