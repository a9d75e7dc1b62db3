#include "../net/copy_crew.h"

#include <atomic>
#include <thread>

#include "check.h"

namespace {

using inlay::net::CopyCrew;
using inlay::net::SharedWork;

class Countdown : public SharedWork {
 public:
  std::atomic<int> left{0};
  std::atomic<int> done{0};

  bool do_piece() override {
    int now = left.load();
    while (now > 0)
      if (left.compare_exchange_weak(now, now - 1)) {
        done.fetch_add(1);
        return true;
      }
    return false;
  }
};

}  // namespace

int main() {
  for (int size = 0; size <= 3; ++size) {
    CopyCrew crew(size);
    const auto first = std::make_shared<Countdown>();
    const auto second = std::make_shared<Countdown>();
    // No call is lost, whenever it comes: also while a thread finds nothing left.
    int pieces = 0;
    for (int round = 1; round <= 20000; ++round) {
      const auto& work = round % 3 == 0 ? second : first;
      const int added = 1 + round % 4;
      work->left.fetch_add(added);
      pieces += added;
      crew.call(work);
      if (round % 7 == 0)
        while (work->left.load() > 0) std::this_thread::yield();
    }
    while (first->done.load() + second->done.load() < pieces) std::this_thread::yield();
    CHECK(first->left.load() == 0 && second->left.load() == 0);
  }
  // Closing does not wait for the end of the work; a closed crew takes none.
  CopyCrew crew(2);
  const auto endless = std::make_shared<Countdown>();
  endless->left.store(1 << 30);
  crew.call(endless);
  while (endless->done.load() == 0) std::this_thread::yield();
  crew.close();
  const int done = endless->done.load();
  crew.call(endless);
  CHECK(endless->done.load() == done);
  CHECK(endless.use_count() == 1);
}
