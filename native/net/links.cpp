#include "links.h"

#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <map>
#include <system_error>

#include "../core/errors.h"

namespace inlay::net {

using Change = LinkEvent::Change;

class LinkWatch::Reader : public Handler {
 public:
  explicit Reader(Callback callback);

  const Descriptor& socket() const { return socket_; }
  bool on_events(uint32_t events) override;

 private:
  struct Link {
    std::string name;
    bool up;
    bool seen;  // in the dump that is under way
  };

  void ask_for_all();
  void read(const nlmsghdr* message);
  void read_link(const nlmsghdr* message);
  void set(int index, const std::string& name, bool up);
  void drop(std::map<int, Link>::iterator link);
  void end_dump();

  Callback callback_;
  Descriptor socket_;
  std::map<int, Link> links_;  // by index
  bool dumping_ = false;
  bool again_ = false;  // something was lost: ask once more after this dump
  // Twice what the kernel puts into one message of a dump.
  alignas(nlmsghdr) std::array<char, 65536> buffer_;
};

LinkWatch::Reader::Reader(Callback callback)
    : callback_(std::move(callback)),
      socket_(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_ROUTE)) {
  sockaddr_nl address{};
  address.nl_family = AF_NETLINK;
  address.nl_groups = RTMGRP_LINK | RTMGRP_IPV4_IFADDR | RTMGRP_IPV6_IFADDR;
  if (!socket_.valid() ||
      bind(socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0)
    throw ResourceError("the system tells nothing of network links: " +
                        std::generic_category().message(errno));
  ask_for_all();
}

void LinkWatch::Reader::ask_for_all() {
  struct {
    nlmsghdr header;
    ifinfomsg body;
  } request{};
  request.header.nlmsg_len = sizeof(request);
  request.header.nlmsg_type = RTM_GETLINK;
  request.header.nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP;
  for (auto& [index, link] : links_) link.seen = false;
  again_ = false;
  // A dump that is still under way answers EBUSY; its end asks again.
  dumping_ = send(socket_.get(), &request, sizeof(request), 0) == sizeof(request);
}

bool LinkWatch::Reader::on_events(uint32_t) {
  for (;;) {
    sockaddr_nl from{};
    iovec part{buffer_.data(), buffer_.size()};
    msghdr header{};
    header.msg_name = &from;
    header.msg_namelen = sizeof(from);
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    const ssize_t size = recvmsg(socket_.get(), &header, 0);
    if (size < 0 && errno == EINTR) continue;
    if (size < 0 && errno == ENOBUFS) {  // the kernel had no room for some
      again_ = true;
      if (!dumping_) ask_for_all();
      continue;
    }
    if (size <= 0) return false;
    if (from.nl_pid != 0) continue;  // not the kernel
    if ((header.msg_flags & MSG_TRUNC) != 0) again_ = true;
    auto left = static_cast<unsigned>(size);
    for (const auto* message = reinterpret_cast<const nlmsghdr*>(buffer_.data());
         NLMSG_OK(message, left); message = NLMSG_NEXT(message, left))
      read(message);
  }
}

void LinkWatch::Reader::read(const nlmsghdr* message) {
  if ((message->nlmsg_flags & NLM_F_DUMP_INTR) != 0) again_ = true;
  switch (message->nlmsg_type) {
    case RTM_NEWLINK:
    case RTM_DELLINK:
      if (message->nlmsg_len >= NLMSG_LENGTH(sizeof(ifinfomsg))) read_link(message);
      break;
    case RTM_NEWADDR:
    case RTM_DELADDR:
      if (message->nlmsg_len >= NLMSG_LENGTH(sizeof(ifaddrmsg))) {
        const auto* body = static_cast<const ifaddrmsg*>(NLMSG_DATA(message));
        const auto link = links_.find(static_cast<int>(body->ifa_index));
        if (link != links_.end()) callback_({link->second.name, Change::kAddresses});
      }
      break;
    case NLMSG_DONE:
    case NLMSG_ERROR:
      end_dump();
      break;
    default:
      break;
  }
}

void LinkWatch::Reader::read_link(const nlmsghdr* message) {
  const auto* body = static_cast<const ifinfomsg*>(NLMSG_DATA(message));
  if (message->nlmsg_type == RTM_DELLINK) {
    // Bridges tell with this message, too, that a port left them.
    const auto link = links_.find(body->ifi_index);
    if (body->ifi_family == AF_UNSPEC && link != links_.end()) drop(link);
    return;
  }
  auto left = static_cast<unsigned>(IFLA_PAYLOAD(message));
  for (const rtattr* field = IFLA_RTA(body); RTA_OK(field, left); field = RTA_NEXT(field, left)) {
    if (field->rta_type != IFLA_IFNAME) continue;
    const auto* text = static_cast<const char*>(RTA_DATA(field));
    const unsigned flags = IFF_UP | IFF_RUNNING;
    set(body->ifi_index, std::string(text, strnlen(text, RTA_PAYLOAD(field))),
        (body->ifi_flags & flags) == flags);
    return;
  }
}

void LinkWatch::Reader::set(int index, const std::string& name, bool up) {
  if (const auto link = links_.find(index); link != links_.end()) {
    link->second.seen = true;
    if (link->second.name == name && link->second.up == up) return;
    if (link->second.name != name) drop(link);  // renamed
  }
  links_[index] = {name, up, true};
  callback_({name, up ? Change::kUp : Change::kDown});
}

void LinkWatch::Reader::drop(std::map<int, Link>::iterator link) {
  const Link gone = std::move(link->second);
  links_.erase(link);
  if (gone.up) callback_({gone.name, Change::kDown});
}

void LinkWatch::Reader::end_dump() {
  if (!dumping_) return;
  dumping_ = false;
  if (again_) {
    ask_for_all();
    return;
  }
  for (auto link = links_.begin(); link != links_.end();) {
    const auto next = std::next(link);
    if (!link->second.seen) drop(link);
    link = next;
  }
}

LinkWatch::LinkWatch(Loop& loop, Callback callback)
    : loop_(loop), reader_(std::make_shared<Reader>(std::move(callback))) {
  id_ = loop_.add(reader_->socket(), EPOLLIN, reader_);
}

LinkWatch::~LinkWatch() { loop_.remove(id_, reader_->socket()); }

}  // namespace inlay::net
