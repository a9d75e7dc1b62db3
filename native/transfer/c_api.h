// What the files of the C interface share: its handles, and the way in and out.
#pragma once

#include <cxxabi.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "../core/errors.h"
#include "../include/inlay/transfer.h"
#include "engine.h"

struct inlay_engine {
  std::shared_ptr<inlay::transfer::Engine> engine;
  std::string address;
  std::vector<std::shared_ptr<inlay::transfer::Segment>>
      closing;  // let go of, perhaps still in use
};
struct inlay_segment {
  std::shared_ptr<inlay::transfer::Engine> engine;
  std::shared_ptr<inlay::transfer::Segment> segment;
  std::shared_ptr<std::byte> memory;
};
struct inlay_peer {
  std::shared_ptr<inlay::transfer::Engine> engine;
  std::shared_ptr<inlay::transfer::Peer> peer;
};
struct inlay_remote {
  std::shared_ptr<inlay::transfer::Engine> engine;
  std::shared_ptr<inlay::transfer::RemoteSegment> segment;
};
struct inlay_batch {
  std::shared_ptr<inlay::transfer::Engine> engine;
  std::shared_ptr<inlay::transfer::Batch> batch;
  std::shared_ptr<inlay::transfer::Completions> completions;  // once its descriptor is asked for
};
struct inlay_message {
  inlay::transfer::Message message;
  std::string engine_id;
};

namespace inlay::c_api {

constexpr double kMaxSeconds = 1e6;

// Fills the caller's error, if any; returns the code.
inlay_status report(inlay_error* error, inlay_status code, const std::string& text,
                    const TransferFailure* failure = nullptr);

// Runs a call's body, and tells what it throws.
template <typename Body>
inlay_status guarded(inlay_error* error, Body&& body) {
  try {
    body();
    return INLAY_OK;
  } catch (const TransferFailure& failure) {
    return report(error, static_cast<inlay_status>(failure.status), failure.what(), &failure);
  } catch (const ArgumentError& problem) {
    return report(error, INLAY_ARGUMENT, problem.what());
  } catch (const WaitTimeoutError& problem) {
    return report(error, INLAY_WAIT_TIMEOUT, problem.what());
  } catch (const inlay::ResourceError& problem) {
    return report(error, INLAY_RESOURCE, problem.what());
  } catch (const std::bad_alloc&) {
    return report(error, INLAY_RESOURCE, "the system gives this process no more memory");
  } catch (const std::exception& problem) {
    return report(error, INLAY_INTERNAL, problem.what());
  } catch (const abi::__forced_unwind&) {
    throw;  // pthread_cancel() ends this thread
  } catch (...) {
    return report(error, INLAY_INTERNAL, "an unknown exception");
  }
}

template <typename T>
T& given(T* argument, const char* name) {
  if (argument == nullptr) throw ArgumentError(std::string(name) + ": must not be NULL");
  return *argument;
}

// Throws TransferFailure(kEngineClosed) in a forked child.
transfer::Engine& living(const std::shared_ptr<transfer::Engine>& engine);

// The caller's struct as this version knows it: what an older caller does not have is zero, what a
// newer one has more must be.
template <typename T>
T known_part(const T* given_struct, std::size_t size, const char* name) {
  constexpr std::size_t kMost = 4096;
  if (size < sizeof(size) || size > kMost || size % alignof(T) != 0)
    throw ArgumentError(std::string(name) + ".size: must be sizeof the struct, got " +
                        std::to_string(size));
  T known{};
  std::memcpy(&known, given_struct, std::min(size, sizeof(T)));
  const auto* bytes = reinterpret_cast<const char*>(given_struct);
  if (size > sizeof(T) &&
      std::any_of(bytes + sizeof(T), bytes + size, [](char byte) { return byte != 0; }))
    throw ArgumentError(std::string(name) +
                        ": has fields that this version of libinlay_transfer does not know");
  return known;
}

// Of a call's argument: more than 0, at most 10^6.
double seconds(const char* name, double value);

inline transfer::Bytes bytes_of(const void* data, std::size_t size) {
  const auto* bytes = static_cast<const std::byte*>(data);
  return {bytes, bytes + size};
}

inline net::Clock::time_point after(double value) {
  return net::Clock::now() +
         std::chrono::duration_cast<net::Clock::duration>(std::chrono::duration<double>(value));
}

}  // namespace inlay::c_api
