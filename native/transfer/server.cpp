#include "server.h"

#include <sys/epoll.h>

#include <algorithm>

#include "../net/bytes.h"
#include "served_lane.h"

namespace inlay::transfer {

using net::Clock;

namespace {

// A flood of connections that prove nothing costs this much and no more.
constexpr std::size_t kMaxUnproven = 64;
constexpr std::size_t kMaxLanes = 1024;
constexpr std::chrono::seconds kHandshakeTime(2);

}  // namespace

Server::Server(const Site& site, net::Descriptor socket, Answerer answerer)
    : loop_(site.loop),
      segments_(site.segments),
      engine_(site.engine),
      token_(site.token),
      answerer_(std::move(answerer)),
      shares_(site.shares),
      acceptor_(site.loop, std::move(socket)) {}

Server::~Server() = default;

void Server::start() { acceptor_.start(shared_from_this()); }

void Server::stop() {
  (void)acceptor_.stop();
  while (!unproven_.empty()) drop(*unproven_.back());
  while (!proven_.empty()) drop(*proven_.begin()->second);
}

bool Server::on_events(uint32_t) {
  acceptor_.accept([this](net::Descriptor socket) {
    if (proven_.size() + unproven_.size() < kMaxLanes)
      accept_one(std::move(socket));
    else
      counts_.count(Refusal::kTooMany);
  });
  return false;
}

void Server::accept_one(net::Descriptor socket) {
  // The oldest goes: an honest initiator proves itself within a millisecond, a flood never.
  if (unproven_.size() == kMaxUnproven) {
    counts_.count(Refusal::kCrowd);
    drop(*unproven_.front());
  }
  net::Nonce nonce;
  net::fill_random(nonce);
  auto lane = std::make_shared<ServedLane>(*this, std::move(socket), nonce);
  lane->start();
  unproven_.push_back(std::move(lane));
  loop_.wake_by(Clock::now() + kHandshakeTime);
}

void Server::welcome(ServedLane& lane) {
  fence(lane.hello().engine, lane.hello().connection);
  const auto found = std::ranges::find(unproven_, &lane, &std::shared_ptr<ServedLane>::get);
  proven_.emplace(&lane, std::move(*found));
  unproven_.erase(found);
}

void Server::drop(ServedLane& lane) {
  lane.end();
  if (lane.proven())
    proven_.erase(&lane);
  else
    std::erase_if(unproven_, [&](const auto& held) { return held.get() == &lane; });
}

StagingPool& Server::staging() {
  if (!staging_)
    staging_.emplace([weak = weak_from_this()] {
      const auto server = weak.lock();
      if (server == nullptr) return;
      server->loop_.post([server] {
        std::vector<std::shared_ptr<ServedLane>> lanes;
        for (const auto& [lane, held] : server->proven_)
          if (lane->stages()) lanes.push_back(held);
        for (const auto& lane : lanes) lane->on_events(0);
      });
    });
  return *staging_;
}

Clock::time_point Server::tick(Clock::time_point now) {
  while (!unproven_.empty() && unproven_.front()->accepted() + kHandshakeTime <= now) {
    counts_.count(Refusal::kTooSlow);
    drop(*unproven_.front());
  }
  acceptor_.resume();
  return unproven_.empty() ? Clock::time_point::max()
                           : unproven_.front()->accepted() + kHandshakeTime;
}

void Server::fence(const net::EngineId& engine, uint64_t connection) {
  std::vector<std::shared_ptr<ServedLane>> old;
  for (const auto& [lane, held] : proven_) {
    const net::Hello& hello = lane->hello();
    if (hello.engine == engine && hello.connection >> 32 < connection >> 32) old.push_back(held);
  }
  counts_.fenced += old.size();
  for (const auto& lane : old) drop(*lane);
}

std::shared_ptr<ServedLane> Server::find(const net::EngineId& engine, uint64_t connection) const {
  for (const auto& [lane, held] : proven_) {
    const net::Hello& hello = lane->hello();
    if (hello.engine == engine && hello.connection == connection) return held;
  }
  return nullptr;
}

Transport::Answer Server::answer(const net::EngineId& engine, const LaneQuestion& question) {
  const auto lane = find(engine, question.connection);
  if (question.ask == LaneAsk::kShut) {
    if (lane != nullptr) {
      ++counts_.fenced;
      drop(*lane);  // nothing that was sent on it lands any more
    }
    return {};
  }
  if (lane == nullptr) return {Status::kPeerUnreachable, {}};
  const uint64_t now = lane->extend_lease(question.time);
  Bytes time(sizeof(now));
  net::store(time.data(), now);
  return {Status::kOk, std::move(time)};
}

void Server::evict(const Segment& segment) {
  std::vector<std::shared_ptr<ServedLane>> lanes;
  for (const auto& [lane, held] : proven_) lanes.push_back(held);
  for (const auto& lane : lanes) lane->end_use(segment);
}

}  // namespace inlay::transfer
