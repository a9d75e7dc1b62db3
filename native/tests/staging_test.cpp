// Buffers are aligned, apart, limited in number, and come back.
#include "../transfer/staging.h"

#include <cstring>
#include <set>
#include <thread>
#include <vector>

#include "check.h"

using inlay::transfer::StagingPool;

int main() {
  std::atomic<int> freed{0};
  std::vector<std::shared_ptr<std::byte>> held;
  {
    StagingPool pool([&] { ++freed; });
    std::set<std::byte*> places;
    for (std::size_t i = 0; i < StagingPool::kBuffers; ++i) {
      held.push_back(pool.take());
      CHECK(reinterpret_cast<uintptr_t>(held.back().get()) % 4096 == 0);
      std::memset(held.back().get(), static_cast<int>(i), StagingPool::kBufferBytes);
      places.insert(held.back().get());
    }
    CHECK(places.size() == StagingPool::kBuffers);
    for (std::size_t i = 0; i < held.size(); ++i)
      CHECK(held[i].get()[0] == std::byte(i) &&
            held[i].get()[StagingPool::kBufferBytes - 1] == std::byte(i));
    CHECK(pool.take() == nullptr && pool.take() == nullptr);
    held.pop_back();
    CHECK(freed == 1);
    held.pop_back();
    CHECK(freed == 1);  // nobody was refused since
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t)
      threads.emplace_back([&, t] {
        for (int round = 0; round < 2000; ++round)
          if (const auto buffer = pool.take()) {
            buffer.get()[0] = std::byte(t);
            CHECK(buffer.get()[0] == std::byte(t));
          }
      });
    for (std::thread& thread : threads) thread.join();
    CHECK(pool.take() != nullptr);
  }
  held.front().get()[0] = std::byte{1};  // outlives the pool
  return 0;
}
