#include "master_server.h"

#include <time.h>

#include <algorithm>
#include <set>

#include "../core/errors.h"
#include "served_client.h"

namespace inlay::store {

class MasterServer::Door final : public net::Handler {
 public:
  explicit Door(MasterServer& server) : server_(server) {}
  bool on_events(uint32_t) override {
    server_.accept_all();
    return false;
  }

 private:
  MasterServer& server_;
};

Millis MasterServer::now_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now().time_since_epoch())
      .count();
}

Clock::time_point MasterServer::after(Millis next) const {
  return Clock::time_point(std::chrono::milliseconds(next));
}

MasterServer::MasterServer(MasterServerOptions options)
    : options_(std::move(options)),
      master_(options_.master, now_ms()),
      until_(options_.serve_until_s),
      loop_(options_.spin_us, [this](Clock::time_point now) { return tick(now); }) {
  if (options_.tenants.empty())
    throw ArgumentError("a master that listens needs a token, for at least one tenant");
  std::set<uint64_t> ids;
  for (const auto& tenant : options_.tenants) {
    credentials_.push_back(credential_of(tenant.token));
    if (!ids.insert(credentials_.back().id).second)
      throw ArgumentError("two tenants have one token, the second is \"" + tenant.name + "\"");
  }
  net::fill_random(id_);
  net::Listener listener = net::listen_at(options_.listen);
  address_ = listener.address;
  acceptor_.emplace(loop_, std::move(listener.socket));
  acceptor_->start(std::make_shared<Door>(*this));
  loop_.wake_by(Clock::now());
  loop_.start();
}

void MasterServer::stop() {
  const std::lock_guard lock(stopping_);
  if (std::exchange(stopped_, true)) return;
  loop_.stop();
  for (const auto& client : unproven_) client->end();
  for (const auto& [peer, client] : clients_) client->end();
  unproven_.clear();
  clients_.clear();
  (void)acceptor_->stop();
}

bool MasterServer::may_serve() const {
  const double until = until_.load(std::memory_order_relaxed);
  if (until == std::numeric_limits<double>::infinity()) return true;
  timespec now{};
  clock_gettime(CLOCK_BOOTTIME, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) / 1e9 < until;
}

void MasterServer::accept_all() {
  acceptor_->accept([this](net::Descriptor socket) {
    ++counts_.connections;
    if (clients_.size() >= kMaxClients) {
      ++counts_.crowded;
      return;
    }
    // The oldest goes: an honest client proves itself within a millisecond, a flood never.
    if (unproven_.size() == kMaxUnproven) {
      ++counts_.crowded;
      drop(*unproven_.front());
    }
    net::Nonce nonce;
    net::fill_random(nonce);
    auto client = std::make_shared<ServedClient>(*this, std::move(socket), nonce);
    client->start();
    unproven_.push_back(std::move(client));
    loop_.wake_by(Clock::now() + kHandshakeTime);
  });
}

void MasterServer::drop(ServedClient& client) {
  const auto self = client.shared_from_this();
  client.end();
  if (client.peer() != 0)
    clients_.erase(client.peer());
  else
    std::erase(unproven_, self);
}

void MasterServer::deliver() {
  std::vector<std::shared_ptr<ServedClient>> touched;
  for (const Master::Late& late : master_.take_answers()) {
    const auto found = clients_.find(late.peer);
    if (found == clients_.end()) continue;
    found->second->answer(late.ticket, late.answer);
    touched.push_back(found->second);
  }
  // A connection that breaks is dropped by its own event.
  for (const auto& client : touched) client->resume();
}

Clock::time_point MasterServer::tick(Clock::time_point now) {
  while (!unproven_.empty() && unproven_.front()->accepted() + kHandshakeTime <= now) {
    ++counts_.crowded;
    drop(*unproven_.front());
  }
  acceptor_->resume();
  const Millis next = master_.tick(now_ms());
  deliver();
  return after(next);
}

template <typename Result>
Result MasterServer::run(std::function<Result()> work) {
  auto promise = std::make_shared<std::promise<Result>>();
  auto future = promise->get_future();
  {
    const std::lock_guard lock(stopping_);
    if (stopped_) throw StoreFailure(StoreStatus::kClosed, "the master is stopped");
    loop_.post([promise, work = std::move(work)] {
      try {
        promise->set_value(work());
      } catch (...) {
        promise->set_exception(std::current_exception());
      }
    });
  }
  // A loop that stops meanwhile never runs it.
  while (future.wait_for(std::chrono::milliseconds(50)) != std::future_status::ready) {
    const std::lock_guard lock(stopping_);
    if (stopped_) throw StoreFailure(StoreStatus::kClosed, "the master is stopped");
  }
  return future.get();
}

Survey::Answer MasterServer::survey() {
  return run<Survey::Answer>([this] {
    Survey::Answer answer = master_.survey(nullptr, now_ms());
    answer.counters.push_back({"connections", counts_.connections});
    answer.counters.push_back({"refused_token", counts_.refused_token});
    answer.counters.push_back({"refused_version", counts_.refused_version});
    answer.counters.push_back({"garbage", counts_.garbage});
    answer.counters.push_back({"crowded", counts_.crowded});
    answer.counters.push_back({"clients", clients_.size()});
    return answer;
  });
}

std::optional<Answer> MasterServer::ask(const std::string& tenant, const Question& question) {
  if (std::ranges::find(options_.tenants, tenant, &MasterServerOptions::Tenant::name) ==
      options_.tenants.end())
    return std::nullopt;
  return run<std::optional<Answer>>([this, &tenant, &question] {
    const PeerId peer = master_.connect(tenant, Uuid{}, now_ms());
    auto answer = master_.handle(peer, 0, question, now_ms());
    master_.disconnect(peer, now_ms());
    return answer;
  });
}

}  // namespace inlay::store
