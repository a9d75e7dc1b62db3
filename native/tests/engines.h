// What tests of whole engines in one process share.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "../transfer/engine.h"

namespace engine_test {

using inlay::transfer::Access;
using inlay::transfer::Batch;
using inlay::transfer::Clock;
using inlay::transfer::Engine;
using inlay::transfer::Op;
using inlay::transfer::Range;
using inlay::transfer::RemoteSegment;
using inlay::transfer::Segment;

inline const inlay::net::Token kToken(32, std::byte{7});

inline Clock::time_point in(double seconds) {
  return Clock::now() +
         std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

inline std::shared_ptr<Segment> allocate(Engine& engine, uint64_t size, Access access,
                                         const std::string& name) {
  auto memory = inlay::transfer::allocate_memory(size, access);
  auto segment =
      std::make_shared<Segment>(memory.bytes.get(), size, true, access, name, memory.bytes);
  segment->memory = std::move(memory.memory);
  engine.add(segment);
  return segment;
}

inline std::shared_ptr<Batch> submit(Engine& engine, Op op, const std::shared_ptr<Segment>& local,
                                     const std::shared_ptr<RemoteSegment>& remote,
                                     std::vector<Range> ranges, double deadline_s = 20,
                                     bool verify = false) {
  std::vector<inlay::transfer::Request> requests;
  requests.push_back({op, local, remote, std::move(ranges)});
  requests.back().verify = verify;
  return engine.submit(std::move(requests), deadline_s);
}

}  // namespace engine_test
