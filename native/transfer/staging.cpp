#include "staging.h"

#include <mutex>
#include <utility>
#include <vector>

#include "../net/file_queue.h"

namespace inlay::transfer {

struct StagingPool::State {
  explicit State(std::function<void()> freed)
      : freed(std::move(freed)), memory(net::map_file_memory(kBufferBytes * kBuffers)) {
    for (std::size_t i = kBuffers; i-- > 0;) free.push_back(memory.get() + i * kBufferBytes);
  }

  void give_back(std::byte* buffer) {
    bool tell = false;
    {
      const std::lock_guard lock(mutex);
      free.push_back(buffer);
      tell = std::exchange(refused, false);
    }
    if (tell) freed();
  }

  const std::function<void()> freed;
  const std::shared_ptr<std::byte> memory;
  std::mutex mutex;
  bool refused = false;
  std::vector<std::byte*> free;
};

StagingPool::StagingPool(std::function<void()> freed)
    : state_(std::make_shared<State>(std::move(freed))) {}

std::shared_ptr<std::byte> StagingPool::take() {
  const std::lock_guard lock(state_->mutex);
  if (state_->free.empty()) {
    state_->refused = true;
    return nullptr;
  }
  std::byte* const buffer = state_->free.back();
  state_->free.pop_back();
  return {buffer, [state = state_](std::byte* at) { state->give_back(at); }};
}

std::shared_ptr<std::byte> StagingPool::take_another() {
  return net::map_file_memory(kBufferBytes);
}

bool StagingPool::has_free() {
  const std::lock_guard lock(state_->mutex);
  state_->refused |= state_->free.empty();
  return !state_->free.empty();
}

std::shared_ptr<std::byte> StagingPool::memory() const { return state_->memory; }

void StagingArea::Waiting::tell_next() {
  for (;;) {
    std::shared_ptr<User> user;
    {
      const std::lock_guard lock(mutex);
      if (users.empty()) return;
      user = users.front().lock();
      users.pop_front();
    }
    if (user != nullptr) return user->buffer_free();
  }
}

StagingArea::StagingArea(const std::string& name)
    : pool_([waiting = waiting_] { waiting->tell_next(); }),
      segment_(std::make_shared<Segment>(pool_.memory().get(), StagingPool::kBytes, true,
                                         Access::kNone, name, pool_.memory())) {}

std::shared_ptr<std::byte> StagingArea::take(const std::weak_ptr<User>& user) {
  if (auto buffer = pool_.take()) return buffer;
  {
    const std::lock_guard lock(waiting_->mutex);
    waiting_->users.push_back(user);
  }
  pass_on();  // one may have come back meanwhile
  return nullptr;
}

void StagingArea::pass_on() {
  {
    const std::lock_guard lock(waiting_->mutex);
    if (waiting_->users.empty()) return;
  }
  if (pool_.has_free()) waiting_->tell_next();
}

void StagedMove::start(std::function<void(Status)> done) {
  done_ = std::move(done);
  move_ = segment_->far->move(write, [this](Status status) {
    // It may hold this object.
    const auto done = std::move(done_);
    use_ = nullptr;
    over_.store(true);
    done(status == Status::kCancelled ? Status::kSegmentClosed : status);
  });
  std::byte* at = buffer.get();
  for (const net::WireRange& range : ranges_) {
    move_->add(range.offset, at, range.length);
    at += range.length;
  }
  move_->start();
}

void StagedMove::cancel() {
  if (move_ != nullptr) move_->cancel();
}

}  // namespace inlay::transfer
