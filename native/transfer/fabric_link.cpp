#include "fabric_link.h"

#include <algorithm>

#include "../net/fabric/connected.h"
#include "../net/fabric/unconnected.h"

namespace inlay::transfer {

namespace fabric = net::fabric;
using Post = fabric::Endpoint::Post;

namespace {

class ConnectedLink final : public FabricLink {
 public:
  ConnectedLink(const std::shared_ptr<const FabricRail>& rail, const fabric::Meeting& meeting,
                const net::Token& token)
      : rail_(rail),
        meeting_(meeting),
        token_(token),
        endpoint_(*rail->port->manager, *rail->info) {}

  fabric::Endpoint& endpoint() override { return endpoint_; }
  std::optional<FabricQuestion> begin(const std::shared_ptr<FabricConnection>& path) override {
    rail_->port->add(endpoint_.id(), path);
    endpoint_.connect(rail_->remote.address, fabric::greet(meeting_, token_));
    return std::nullopt;
  }
  void hear(std::span<const std::byte> words) override {
    stage_ = fabric::reply_proves(words, meeting_, token_) ? Stage::kJoined : Stage::kRefused;
  }
  void on_completion(int) override {}
  Stage look() override { return stage_; }
  void close() override {
    rail_->port->forget(endpoint_.id());
    endpoint_.close();
  }

 private:
  const std::shared_ptr<const FabricRail> rail_;
  const fabric::Meeting meeting_;
  const net::Token& token_;
  fabric::ConnectedEndpoint endpoint_;
  Stage stage_ = Stage::kJoining;
};

class UnconnectedLink final : public FabricLink {
 public:
  explicit UnconnectedLink(const std::shared_ptr<const FabricRail>& rail)
      : rail_(rail), endpoint_(rail->port->domain) {}

  fabric::Endpoint& endpoint() override { return endpoint_; }
  std::optional<FabricQuestion> begin(const std::shared_ptr<FabricConnection>&) override {
    FabricQuestion question{.ask = FabricAsk::kOpen};
    question.port = rail_->remote_port;
    question.address = endpoint_.address();
    return question;
  }
  void hear(std::span<const std::byte> words) override {
    welcome_ = decode_fabric_welcome(words);
    if (!welcome_ || !endpoint_.join(welcome_->address)) stage_ = Stage::kRefused;
  }
  void on_completion(int error) override {
    const bool same = std::ranges::equal(endpoint_.peeked(), welcome_->landmark);
    stage_ = error == 0 && same ? Stage::kJoined : Stage::kRefused;
  }
  // Providers take nothing before they have found the way.
  Stage look() override {
    if (stage_ != Stage::kJoining || !welcome_ || peeking_) return stage_;
    const fabric::RemoteRange at{welcome_->landmark_at.base, welcome_->landmark_at.key};
    const Post post = endpoint_.peek(at, welcome_->landmark.size(), static_cast<FabricLink*>(this));
    peeking_ = post == Post::kTaken;
    endpoint_.may_sleep();  // sets the clock
    if (post == Post::kFailed) stage_ = Stage::kRefused;
    return stage_;
  }
  void close() override { endpoint_.close(); }

 private:
  const std::shared_ptr<const FabricRail> rail_;
  fabric::UnconnectedEndpoint endpoint_;
  std::optional<FabricWelcome> welcome_;
  bool peeking_ = false;
  Stage stage_ = Stage::kJoining;
};

}  // namespace

std::unique_ptr<FabricLink> make_fabric_link(const std::shared_ptr<const FabricRail>& rail,
                                             const fabric::Meeting& meeting,
                                             const net::Token& token) {
  if (rail->port->domain.connected()) return std::make_unique<ConnectedLink>(rail, meeting, token);
  return std::make_unique<UnconnectedLink>(rail);
}

}  // namespace inlay::transfer
