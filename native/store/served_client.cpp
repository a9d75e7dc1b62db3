#include "served_client.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace inlay::store {

namespace {

// Per event, so that others get their turn.
constexpr int kMaxTurns = 16;

}  // namespace

ServedClient::ServedClient(MasterServer& server, net::Descriptor socket, const net::Nonce& nonce)
    : server_(server),
      socket_(std::move(socket)),
      handshake_(server.id_, nonce, [this](const net::Hello& hello) -> const net::Token* {
        const auto found =
            std::ranges::find(server_.credentials_, hello.connection, &Credential::id);
        tenant_ = static_cast<std::size_t>(found - server_.credentials_.begin());
        return found == server_.credentials_.end() ? nullptr : &found->proof;
      }) {}

void ServedClient::start() {
  events_ = EPOLLIN;
  loop_id_ = server_.loop_.add(socket_, events_, shared_from_this());
}

void ServedClient::end() {
  if (!socket_.valid()) return;
  server_.loop_.remove(loop_id_, socket_);
  socket_.close();
  if (peer_ != 0) server_.master_.disconnect(peer_, MasterServer::now_ms());
}

bool ServedClient::on_events(uint32_t) {
  if (!socket_.valid()) return false;
  const auto self = shared_from_this();
  bool worked = false;
  const bool alive = (proven_ || shake_hands()) && (!proven_ || receive(worked));
  server_.deliver();
  if (socket_.valid()) {
    if (alive && flush())
      watch();
    else
      server_.drop(*this);
  }
  return worked;
}

void ServedClient::watch() {
  const uint32_t events =
      (paused() ? 0U : uint32_t{EPOLLIN}) | (sent_ < out_.size() ? uint32_t{EPOLLOUT} : 0U);
  if (events == events_) return;
  events_ = events;
  server_.loop_.change(loop_id_, socket_, events);
}

bool ServedClient::shake_hands() {
  using State = net::ServerHandshake::State;
  in_.resize(handshake_.wanted());
  const ssize_t n = recv(socket_.get(), in_.data() + end_, in_.size() - end_, MSG_DONTWAIT);
  if (n == 0 || (n < 0 && errno != EAGAIN)) return false;
  end_ += static_cast<std::size_t>(std::max<ssize_t>(n, 0));
  if (end_ < in_.size()) return true;
  handshake_.take(in_);
  end_ = 0;
  const auto output = handshake_.output();
  // At most 96 bytes into the empty buffer of a new socket.
  const bool sent = output.empty() || send(socket_.get(), output.data(), output.size(),
                                           MSG_NOSIGNAL) == static_cast<ssize_t>(output.size());
  proven_ = handshake_.state() == State::kAccepted;
  if (proven_) in_.resize(kReceive);
  if (handshake_.state() == State::kRefused)
    ++(handshake_.status() == Status::kPeerRefused ? server_.counts_.refused_token
                                                   : server_.counts_.garbage);
  if (handshake_.state() == State::kNotInlay) ++server_.counts_.garbage;
  return sent && (proven_ || handshake_.state() == State::kRunning);
}

bool ServedClient::receive(bool& worked) {
  for (int turn = 0; turn < kMaxTurns; ++turn) {
    std::size_t taken = 0;
    const char* problem = nullptr;
    while (!paused()) {
      taken = 0;
      const auto frame = parse_frame(std::span(in_).subspan(begin_, end_ - begin_), taken, problem);
      if (!frame) break;
      if (!take(*frame)) return false;
      begin_ += taken;
      worked = true;
    }
    if (problem != nullptr) {
      ++server_.counts_.garbage;
      return false;
    }
    if (paused()) return true;
    if (begin_ > 0) std::memmove(in_.data(), in_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
    // A long frame gets its room as it comes, so that a head that lies costs nobody memory.
    if (end_ == in_.size()) in_.resize(std::min(in_.size() * 2, kFrameHead + kMaxFrame));
    if (end_ == 0 && in_.size() > kReceive) {
      in_.resize(kReceive);
      in_.shrink_to_fit();
    }
    const std::size_t wanted = in_.size() - end_;
    const ssize_t n = recv(socket_.get(), in_.data() + end_, wanted, MSG_DONTWAIT);
    if (n == 0 || (n < 0 && errno != EAGAIN)) return false;
    if (n < 0) return true;
    end_ += static_cast<std::size_t>(n);
    if (turn > 0 && !flush()) return false;
  }
  return true;
}

bool ServedClient::greet(const Frame& frame) {
  Greeting greeting;
  if (frame.kind != kGreeting || !decode(frame.body, greeting)) return false;
  if (!server_.may_serve()) return false;
  server_.see_epoch(greeting.epoch_seen);
  const bool speaks =
      greeting.min_version <= kProtocolVersion && greeting.max_version >= kProtocolVersion;
  const std::size_t begin = begin_frame(out_);
  encode(Welcome{.terms = server_.master_.terms()}, out_);
  finish_frame(out_, begin, kGreeting, speaks ? StoreStatus::kOk : StoreStatus::kVersion,
               frame.serial);
  if (!speaks) {
    ++server_.counts_.refused_version;
    (void)flush();
    return false;
  }
  const auto self = shared_from_this();
  peer_ = server_.master_.connect(server_.options_.tenants[tenant_].name, greeting.client,
                                  MasterServer::now_ms());
  std::erase(server_.unproven_, self);
  server_.clients_.emplace(peer_, self);
  return true;
}

bool ServedClient::take(const Frame& frame) {
  if (peer_ == 0) return greet(frame);
  if (frame.kind == kPing) {
    finish_frame(out_, begin_frame(out_), kPing, StoreStatus::kOk, frame.serial);
    return true;
  }
  if (!decode(frame.kind, frame.body, question_)) {
    ++server_.counts_.garbage;
    return false;
  }
  if (!server_.may_serve()) return false;
  if (const auto* join = std::get_if<Join>(&question_)) server_.see_epoch(join->epoch_seen);
  const uint64_t ticket = ++last_ticket_;
  const bool told = std::holds_alternative<Touch>(question_);
  if (!told) unanswered_.emplace(ticket, Unanswered{frame.serial, frame.kind});
  std::optional<Answer> answer;
  try {
    answer = server_.master_.handle(peer_, ticket, question_, MasterServer::now_ms());
  } catch (const std::exception&) {
    // Memory is short: the connection ends, and the client asks again.
    ++server_.counts_.garbage;
    return false;
  }
  if (answer && !told) {
    unanswered_.erase(ticket);
    put(frame.kind, frame.serial, *answer);
  }
  if (frame.body.size() > kReceive) question_ = {};  // long ones are rare
  return true;
}

void ServedClient::put(std::size_t kind, uint64_t serial, const Answer& answer) {
  const std::size_t begin = begin_frame(out_);
  encode(answer, out_);
  finish_frame(out_, begin, static_cast<uint16_t>(kind), StoreStatus::kOk, serial);
}

void ServedClient::answer(uint64_t ticket, const Answer& answer) {
  const auto found = unanswered_.find(ticket);
  if (found == unanswered_.end()) return;
  put(found->second.kind, found->second.serial, answer);
  unanswered_.erase(found);
}

void ServedClient::resume() {
  if (!socket_.valid()) return;
  // What came while too much was unanswered lies here already: a writable socket makes an event.
  const bool held = begin_ < end_ && events_ == 0;
  (void)flush();
  watch();
  if (held && !paused()) server_.loop_.post([self = shared_from_this()] { self->on_events(0); });
}

bool ServedClient::flush() {
  if (sent_ < out_.size() && !server_.may_serve()) return false;
  while (sent_ < out_.size()) {
    const ssize_t n =
        send(socket_.get(), out_.data() + sent_, out_.size() - sent_, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0 && errno == EAGAIN) return true;
    if (n <= 0) return false;
    sent_ += static_cast<std::size_t>(n);
  }
  out_.clear();
  sent_ = 0;
  return true;
}

}  // namespace inlay::store
