// Errors of the native core. The bindings turn them into the classes of inlay.core.errors.
#pragma once

#include <stdexcept>

namespace inlay {

// An argument has a wrong value, shape or type; the message names it.
class ArgumentError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Weights hold a NaN or an infinity, or would in their format.
class NotFiniteError : public ArgumentError {
 public:
  using ArgumentError::ArgumentError;
};

// A wait ended before what it waited for was done.
class WaitTimeoutError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// What an engine's step needs was broken off.
class EngineError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The system has no more of what is needed, e.g. threads.
class ResourceError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace inlay
