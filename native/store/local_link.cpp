#include "local_link.h"

#include <algorithm>

#include "../core/interrupt.h"
#include "../core/start_thread.h"

namespace inlay::store {

namespace {

Millis ms_of(Clock::time_point time) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(time.time_since_epoch()).count();
}

}  // namespace

LocalMaster::LocalMaster(MasterOptions options) : master_(std::move(options), ms_of(Clock::now())) {
  thread_ = start_thread([this] { run(); });
}

LocalMaster::~LocalMaster() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

Survey::Answer LocalMaster::survey() {
  const std::lock_guard lock(mutex_);
  return master_.survey(nullptr, ms_of(Clock::now()));
}

PeerId LocalMaster::connect(const std::string& tenant) {
  Uuid client;
  net::fill_random(client);
  const std::lock_guard lock(mutex_);
  return master_.connect(tenant, client, ms_of(Clock::now()));
}

void LocalMaster::disconnect(PeerId peer) {
  std::vector<Told> told;
  {
    const std::lock_guard lock(mutex_);
    master_.disconnect(peer, ms_of(Clock::now()));
    std::erase_if(pending_, [&](auto& one) {
      if (one.second.peer != peer) return false;
      told.push_back({std::move(one.second.then), StoreStatus::kClosed, {}});
      return true;
    });
  }
  tell(told);
}

void LocalMaster::ask(PeerId peer, const Question& question, Clock::time_point until, Then then) {
  std::vector<Told> told;
  {
    const std::lock_guard lock(mutex_);
    const Clock::time_point now = Clock::now();
    const uint64_t ticket = ++last_ticket_;
    auto answer = master_.handle(peer, ticket, question, ms_of(now));
    if (answer) {
      told.push_back({std::move(then), StoreStatus::kOk, std::move(*answer)});
    } else {
      pending_.emplace(ticket, Pending{peer, until, std::move(then)});
      times_.emplace(until, ticket);
    }
    collect(told, now);
    // A tick is at most 50 ms away; what waits for less wakes it.
    if (!pending_.empty() && until < next_) wake_.notify_one();
  }
  tell(told);
}

void LocalMaster::collect(std::vector<Told>& told, Clock::time_point now) {
  for (Master::Late& late : master_.take_answers()) {
    const auto found = pending_.find(late.ticket);
    if (found == pending_.end()) continue;
    told.push_back({std::move(found->second.then), StoreStatus::kOk, std::move(late.answer)});
    pending_.erase(found);
  }
  while (!times_.empty()) {
    const auto first = times_.begin();
    const auto found = pending_.find(first->second);
    if (found != pending_.end()) {
      if (first->first > now) break;
      told.push_back({std::move(found->second.then), StoreStatus::kTimeout, {}});
      pending_.erase(found);
    }
    times_.erase(first);
  }
}

void LocalMaster::tell(std::vector<Told>& told) {
  for (Told& one : told) one.then(one.status, std::move(one.answer));
}

void LocalMaster::run() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    const Clock::time_point now = Clock::now();
    std::vector<Told> told;
    next_ = Clock::time_point(std::chrono::milliseconds(master_.tick(ms_of(now))));
    collect(told, now);
    if (!times_.empty()) next_ = std::min(next_, times_.begin()->first);
    if (!told.empty()) {
      lock.unlock();
      tell(told);
      lock.lock();
      continue;
    }
    wake_.wait_until(lock, next_);
  }
}

LocalLink::LocalLink(std::shared_ptr<LocalMaster> master, const std::string& tenant)
    : master_(std::move(master)), peer_(master_->connect(tenant)) {}

void LocalLink::close() {
  if (!closed_.exchange(true)) master_->disconnect(peer_);
}

void LocalLink::tell(const Touch& touch) {
  const std::lock_guard lock(master_->mutex_);
  (void)master_->master_.handle(peer_, 0, touch, ms_of(Clock::now()));
}

Terms LocalLink::terms() const { return master_->master_.terms(); }

void LocalLink::start(const Question& question, Clock::time_point until, Then then) {
  if (closed_)
    then(StoreStatus::kClosed, {});
  else
    master_->ask(peer_, question, until, std::move(then));
}

Answer LocalLink::wait(const Question& question, Clock::time_point until, bool) {
  struct Shared {
    std::mutex mutex;
    std::condition_variable told;
    bool done = false;
    StoreStatus status = StoreStatus::kOk;
    Answer answer;
  };
  const auto shared = std::make_shared<Shared>();
  start(question, until, [shared](StoreStatus status, Answer answer) {
    const std::lock_guard lock(shared->mutex);
    shared->status = status;
    shared->answer = std::move(answer);
    shared->done = true;
    shared->told.notify_one();
  });
  std::unique_lock lock(shared->mutex);
  const auto done = [&] { return shared->done; };
  if (!can_be_interrupted()) shared->told.wait(lock, done);
  while (!shared->told.wait_for(lock, kInterruptEvery, done)) {
    lock.unlock();
    if (interrupted()) throw Interrupted();
    lock.lock();
  }
  if (shared->status == StoreStatus::kTimeout)
    throw StoreFailure(shared->status, "the master in this process did not answer in time");
  if (shared->status != StoreStatus::kOk) throw StoreFailure(shared->status, "the store is closed");
  return std::move(shared->answer);
}

}  // namespace inlay::store
