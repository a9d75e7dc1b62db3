// std::thread, but with an error that says what to do.
#pragma once

#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "errors.h"

namespace inlay {

template <typename Function>
std::thread start_thread(Function&& function) {
  try {
    return std::thread(std::forward<Function>(function));
  } catch (const std::system_error& error) {
    throw ResourceError(std::string("the system refuses another thread (") + error.what() +
                        "): allow this process more of them (ulimit -u, the cgroup's pids.max) or "
                        "more address space (ulimit -v), or run it on fewer cores (taskset)");
  }
}

}  // namespace inlay
