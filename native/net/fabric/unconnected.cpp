#include "unconnected.h"

#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace inlay::net::fabric {

using namespace std::chrono_literals;

namespace {

// Waking costs a few us of a core. Of an operation that takes long it is done less often, but often
// enough for a provider in software, whose sockets are full after some 100 us.
constexpr auto kFirstPause = 20us;
constexpr auto kLastPause = 100us;
constexpr std::size_t kDoublings = 3;

}  // namespace

UnconnectedEndpoint::UnconnectedEndpoint(Domain& domain)
    : Endpoint(domain, domain.info(), FI_WAIT_NONE) {
  const Library& library = domain_.library();
  descriptor_ = Descriptor(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  if (descriptor_.get() < 0) fail(library, "timerfd_create", -errno);
  fi_av_attr attributes{};
  attributes.type = FI_AV_TABLE;
  attributes.count = 1;
  fid_av* addresses = nullptr;
  require(library, "fi_av_open", fi_av_open(domain_.domain(), &attributes, &addresses, nullptr));
  addresses_.reset(addresses);
  bind("fi_ep_bind(av)", addresses->fid, 0);
  enable();
  address_.resize(kMaxAddress);
  std::size_t size = address_.size();
  require(library, "fi_getname", fi_getname(&endpoint_->fid, address_.data(), &size));
  address_.resize(size);
}

bool UnconnectedEndpoint::join(std::span<const std::byte> address) {
  if (address.size() != address_.size() || peer_ != FI_ADDR_UNSPEC) return false;
  // Zeros behind it, for a provider that goes by the kind of address that the bytes claim to be.
  std::array<std::byte, kMaxAddress> padded{};
  std::ranges::copy(address, padded.begin());
  return fi_av_insert(addresses_.get(), padded.data(), 1, &peer_, 0, nullptr) == 1 &&
         peer_ != FI_ADDR_NOTAVAIL;
}

void UnconnectedEndpoint::attend(bool attending) {
  attending_ = attending && !domain_.serves_by_itself();
  if (attending_ && !armed_) wake_in(kLastPause);
}

bool UnconnectedEndpoint::may_sleep() {
  if (is_busy())
    wake_in(std::min<std::chrono::nanoseconds>(
        kFirstPause * (1 << std::min(fruitless_, kDoublings)), kLastPause));
  else if (attending_)
    wake_in(kLastPause);
  return true;
}

void UnconnectedEndpoint::wake_in(std::chrono::nanoseconds pause) {
  itimerspec time{};
  time.it_value.tv_nsec = pause.count();
  timerfd_settime(descriptor_.get(), 0, &time, nullptr);
  armed_ = true;
}

void UnconnectedEndpoint::on_progress(int taken) {
  fruitless_ = taken > 0 ? 0 : fruitless_ + 1;
  if (!armed_) return;
  uint64_t count;
  if (::read(descriptor_.get(), &count, sizeof(count)) == sizeof(count)) armed_ = false;
}

}  // namespace inlay::net::fabric
