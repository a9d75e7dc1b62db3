// The C interface to batches.
#include <cmath>
#include <optional>

#include "c_api.h"

namespace transfer = inlay::transfer;
using namespace inlay::c_api;
using inlay::ArgumentError;
using inlay::Status;
using inlay::TransferFailure;
using inlay::WaitTimeoutError;
using transfer::Clock;
using transfer::Engine;

namespace {

constexpr double kDefaultDeadline_s = 30;

transfer::Request request_of(const inlay_request& given_request, std::size_t index) {
  const std::string name = "requests[" + std::to_string(index) + "]";
  const auto known = known_part(&given_request, given_request.size, name.c_str());
  if (known.op != INLAY_READ && known.op != INLAY_WRITE)
    throw ArgumentError(name + ".op: must be INLAY_READ or INLAY_WRITE, got " +
                        std::to_string(known.op));
  if (known.num_ranges > 0) given(known.ranges, (name + ".ranges").c_str());
  transfer::Request request{known.op == INLAY_READ ? transfer::Op::kRead : transfer::Op::kWrite,
                            given(known.local, (name + ".local").c_str()).segment,
                            given(known.remote, (name + ".remote").c_str()).segment,
                            {}};
  request.ranges.reserve(known.num_ranges);
  for (std::size_t i = 0; i < known.num_ranges; ++i)
    request.ranges.push_back(
        {known.ranges[i].local, known.ranges[i].remote, known.ranges[i].length});
  return request;
}

}  // namespace

inlay_status inlay_submit(inlay_engine* engine, const inlay_request* requests, size_t count,
                          const inlay_submit_options* options, inlay_batch** batch,
                          inlay_error* error) {
  return guarded(error, [&] {
    Engine& native = living(given(engine, "engine").engine);
    given(batch, "batch");
    inlay_submit_options chosen{};
    if (options != nullptr) chosen = known_part(options, options->size, "options");
    if (chosen.verify != 0 && chosen.verify != 1)
      throw ArgumentError("options.verify: must be 0 or 1, got " + std::to_string(chosen.verify));
    double deadline_s = chosen.deadline_s;
    if (deadline_s == 0) deadline_s = kDefaultDeadline_s;
    if (!std::isinf(deadline_s) || deadline_s < 0) seconds("options.deadline_s", deadline_s);
    std::vector<transfer::Request> wanted;
    if (count > 0) given(requests, "requests");
    const std::size_t stride = count > 0 ? requests->size : 0;
    for (std::size_t i = 0; i < count; ++i) {
      const auto* at = reinterpret_cast<const char*>(requests) + i * stride;
      const auto& request = *reinterpret_cast<const inlay_request*>(at);
      if (request.size != stride)
        throw ArgumentError("requests[" + std::to_string(i) + "].size: must be the first's, " +
                            std::to_string(stride) + ", got " + std::to_string(request.size));
      wanted.push_back(request_of(request, i));
      wanted.back().verify = chosen.verify == 1;
    }
    auto handle = std::make_unique<inlay_batch>();
    handle->engine = engine->engine;
    std::optional<transfer::Bytes> notification;
    if (chosen.notification != nullptr)
      notification = bytes_of(chosen.notification, chosen.notification_bytes);
    else if (chosen.notification_bytes != 0)
      throw ArgumentError("options.notification: must not be NULL when it has bytes, here " +
                          std::to_string(chosen.notification_bytes));
    handle->batch = native.submit(std::move(wanted), deadline_s, notification);
    *batch = handle.release();
  });
}

inlay_status inlay_batch_wait(inlay_batch* batch, double timeout_s, inlay_error* error) {
  return guarded(error, [&] {
    living(given(batch, "batch").engine);
    if (!(timeout_s <= kMaxSeconds))
      throw ArgumentError("timeout_s: must be at most 1e6 seconds, got " +
                          std::to_string(timeout_s));
    transfer::Batch& native = *batch->batch;
    if (!native.wait(timeout_s < 0 ? Clock::time_point::max() : after(timeout_s)))
      throw WaitTimeoutError("the batch was not over after " + std::to_string(timeout_s) +
                             " s; it goes on: wait again, or cancel it");
    if (native.state() != transfer::State::kDone) throw native.failure();
  });
}

inlay_status inlay_batch_cancel(inlay_batch* batch, double timeout_s, int32_t* settled,
                                inlay_error* error) {
  return guarded(error, [&] {
    living(given(batch, "batch").engine);
    const std::chrono::duration<double> grace(seconds("timeout_s", timeout_s));
    transfer::Batch& native = *batch->batch;
    native.stop(Status::kCancelled, std::chrono::duration_cast<Clock::duration>(grace));
    native.wait(Clock::time_point::max());
    if (settled != nullptr) *settled = native.settled() ? 1 : 0;
  });
}

inlay_status inlay_batch_fd(inlay_batch* batch, int32_t* fd, inlay_error* error) {
  return guarded(error, [&] {
    living(given(batch, "batch").engine);
    given(fd, "fd");
    if (batch->completions == nullptr) {
      const auto completions = std::make_shared<transfer::Completions>();
      if (!batch->batch->tell(completions, 0)) completions->over(0);
      batch->completions = completions;
    }
    *fd = batch->completions->fd();
  });
}

int32_t inlay_batch_done(const inlay_batch* batch) {
  return batch != nullptr && batch->batch->over() ? 1 : 0;
}

int32_t inlay_batch_settled(const inlay_batch* batch) {
  return batch != nullptr && batch->batch->over() && batch->batch->settled() ? 1 : 0;
}

inlay_status inlay_batch_status(inlay_batch* batch, size_t index, inlay_transfer_status* status,
                                inlay_error* error) {
  return guarded(error, [&] {
    transfer::Batch& native = *given(batch, "batch").batch;
    auto known = known_part(status, given(status, "status").size, "status");
    if (index >= native.size())
      throw ArgumentError("index: must be less than " + std::to_string(native.size()) +
                          ", the batch's requests, got " + std::to_string(index));
    const bool over = native.over();  // before the progress, which may end meanwhile
    const transfer::Batch::Progress now = native.progress(index);
    known.done = now.complete ? 1 : 0;
    known.bytes_done = now.bytes_done;
    Status code = now.complete || !over ? Status::kOk : now.error;
    if (over && !now.complete && native.state() == transfer::State::kCancelled)
      code = Status::kCancelled;
    if (over && !now.complete && native.state() == transfer::State::kTimedOut)
      code = Status::kTimeout;
    known.code = static_cast<inlay_status>(code);
    std::memcpy(status, &known, std::min(status->size, sizeof(known)));
  });
}

void inlay_batch_release(inlay_batch* batch) { delete batch; }
