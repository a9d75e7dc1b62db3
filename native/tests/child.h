// A forked process that runs a function, for tests of what happens between processes.
#pragma once

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <utility>

#include "check.h"

class Child {
 public:
  // The child ends with status 0 when `run` returns. Both ends can signal each other through tell()
  // and hear().
  template <typename Run>
  explicit Child(Run&& run) {
    std::array<int, 2> down;
    std::array<int, 2> up;
    CHECK(pipe(down.data()) == 0 && pipe(up.data()) == 0);
    pid_ = fork();
    CHECK(pid_ >= 0);
    read_ = pid_ == 0 ? down[0] : up[0];
    write_ = pid_ == 0 ? up[1] : down[1];
    ::close(pid_ == 0 ? down[1] : down[0]);
    ::close(pid_ == 0 ? up[0] : up[1]);
    if (pid_ != 0) return;
    alarm(60);
    run(*this);
    _exit(0);
  }
  ~Child() {
    kill(SIGKILL);
    ::close(read_);
    ::close(write_);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  pid_t pid() const { return pid_; }
  void tell() const { CHECK(write(write_, "x", 1) == 1); }
  void hear() const {
    char byte;
    CHECK(read(read_, &byte, 1) == 1);
  }
  // Ends the child and collects it.
  void kill(int signal) {
    if (pid_ <= 0) return;
    ::kill(pid_, signal);
    waitpid(std::exchange(pid_, 0), nullptr, 0);
  }
  bool succeeded() {
    int status = 0;
    return waitpid(std::exchange(pid_, 0), &status, 0) > 0 && WIFEXITED(status) &&
           WEXITSTATUS(status) == 0;
  }

 private:
  pid_t pid_ = 0;
  int read_ = -1;
  int write_ = -1;
};
