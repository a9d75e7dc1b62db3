// Libraries under libfabric take the process's signals: libinfinipath (psm), when it is loaded,
// makes Ctrl-C and SIGTERM end the process at once, and the shm provider catches them too. Whoever
// embeds us keeps their own handlers.
#pragma once

#include <array>
#include <csignal>

namespace inlay::net::fabric {

// Puts back at its end how each signal was handled at its beginning.
class SignalActions {
 public:
  SignalActions();
  ~SignalActions();
  SignalActions(const SignalActions&) = delete;
  SignalActions& operator=(const SignalActions&) = delete;

 private:
  // Those that a library may take; real-time signals are given out by the C library.
  static constexpr std::array kSignals{SIGHUP,  SIGINT,  SIGQUIT, SIGILL,  SIGABRT,
                                       SIGBUS,  SIGFPE,  SIGSEGV, SIGPIPE, SIGALRM,
                                       SIGTERM, SIGUSR1, SIGUSR2, SIGCHLD};

  std::array<struct sigaction, kSignals.size()> actions_{};
};

}  // namespace inlay::net::fabric
