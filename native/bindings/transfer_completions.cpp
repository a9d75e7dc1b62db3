// What inlay.transfer.asyncio stands on: batches that tell an event loop of their end.
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/vector.h>

#include "../transfer/completions.h"
#include "transfer.h"

namespace inlay::bindings {

using namespace nb::literals;
using transfer::Clock;
using transfer::Completions;

namespace {

// Batches, which may end on any thread, hold the queue and not the Python object.
bool watch(const CompletionsHandle& handle, const BatchHandle& batch, uint64_t key) {
  (void)batch.engine->get();
  return batch.batch->tell(handle.queue, key);
}

bool watch_messages(const CompletionsHandle& handle, const std::shared_ptr<EngineHandle>& engine,
                    uint64_t key) {
  return engine->get().arrivals().tell(handle.queue, key);
}

void stop(const BatchHandle& handle, double grace_s) {
  const auto grace = std::chrono::duration_cast<Clock::duration>(
      std::chrono::duration<double>(checked_seconds("grace_s", grace_s)));
  transfer::Engine& engine = handle.engine->get();
  const std::shared_ptr<transfer::Batch> batch = handle.batch;
  const WithoutGil unlocked;
  engine.cancel(*batch, grace);
}

}  // namespace

void register_transfer_completions(nb::module_& m) {
  nb::class_<CompletionsHandle>(m, "Completions", "Batches that are over, for one event loop.")
      .def(nb::init<>())
      .def(
          "fileno", [](const CompletionsHandle& h) { return h.queue->fd(); },
          "Readable while there is something to take.")
      .def("watch", watch, "batch"_a, "key"_a,
           "Have `key` among what take() returns when the batch is over; False: it is over now.")
      .def("watch_messages", watch_messages, "engine"_a, "key"_a,
           "The same for a message; False: one is there now, or the engine closes.")
      .def(
          "take", [](const CompletionsHandle& h) { return h.queue->take(); },
          "The keys of batches that ended since the last call.");
  m.def("stop", stop, "batch"_a, "grace_s"_a,
        "Cancel a batch without waiting: it is over within `grace_s`.");
}

}  // namespace inlay::bindings
