// A path that is nothing but copies of this process.
#pragma once

#include "copy_queue.h"

namespace inlay::transfer {

class CopyPath : public Path, public CopyQueue {
 public:
  void kick() override { call_crew(); }
  bool pump() override { return copy_piece(); }
  bool try_drive(const net::WakeUp&) override { return true; }
  void stop_driving(const net::WakeUp&) override {}
  void revoke(const void* owner) override {
    std::unique_lock lock(mutex_);
    end_copies(lock, owner, Status::kCancelled);
  }
  void abandon(const void*) override {}
  void close(Status why) override {
    std::unique_lock lock(mutex_);
    if (closed_ == Status::kOk) closed_ = why;
    end_copies(lock, nullptr, why);
  }

 protected:
  CopyPath(const std::shared_ptr<PathOwner>& owner, net::CopyCrew& crew)
      : CopyQueue(crew), owner_(owner) {}

  void copied(Attempt& attempt, Status status) override {
    if (const auto owner = owner_.lock()) owner->completed(attempt, status);
  }
  void moved() override {
    if (const auto owner = owner_.lock()) owner->fill();
  }

  const std::weak_ptr<PathOwner> owner_;
};

}  // namespace inlay::transfer
