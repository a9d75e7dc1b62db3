#include "endpoint.h"

#include <algorithm>
#include <array>

#include "../../core/status.h"

namespace inlay::net::fabric {

namespace {

// More than fill any link; providers offer thousands where each costs memory.
constexpr std::size_t kMaxOperations = 256;

}  // namespace

Endpoint::Endpoint(Domain& domain, const fi_info& info) : domain_(domain) {
  const Library& library = domain_.library();
  max_message_ = info.ep_attr->max_msg_size;
  max_operations_ = std::min(info.tx_attr->size, kMaxOperations);
  fi_cq_attr attributes{};
  attributes.size = max_operations_;
  attributes.format = FI_CQ_FORMAT_CONTEXT;
  attributes.wait_obj = FI_WAIT_FD;
  fid_cq* completions = nullptr;
  require(library, "fi_cq_open", fi_cq_open(domain_.domain(), &attributes, &completions, nullptr));
  completions_.reset(completions);
  descriptor_ = wait_descriptor(library, completions->fid);
  // Not changed by libfabric, which takes no pointer to const.
  fid_ep* endpoint = nullptr;
  require(library, "fi_endpoint",
          fi_endpoint(domain_.domain(), const_cast<fi_info*>(&info), &endpoint, nullptr));
  endpoint_.reset(endpoint);
  id_ = &endpoint->fid;
  require(library, "fi_ep_bind", fi_ep_bind(endpoint, &domain_.event_queue()->fid, 0));
  require(library, "fi_ep_bind", fi_ep_bind(endpoint, &completions->fid, FI_TRANSMIT | FI_RECV));
  require(library, "fi_enable", fi_enable(endpoint));
  if (domain_.confirms_writes() || (domain_.info().domain_attr->mr_mode & FI_MR_LOCAL) == 0) return;
  fid_mr* region = nullptr;
  require(library, "fi_mr_reg",
          fi_mr_reg(domain_.domain(), &confirmed_, 1, FI_READ, 0, 0, 0, &region, nullptr));
  confirmed_region_.reset(region);
}

void Endpoint::connect(std::span<const std::byte> address, std::span<const std::byte> greeting) {
  require(domain_.library(), "fi_connect",
          fi_connect(endpoint_.get(), address.data(), greeting.data(), greeting.size()));
}

void Endpoint::accept(std::span<const std::byte> greeting) {
  require(domain_.library(), "fi_accept",
          fi_accept(endpoint_.get(), greeting.data(), greeting.size()));
}

Endpoint::Operation* Endpoint::take_operation(void* owner) {
  if (free_.empty()) {
    if (operations_.size() == max_operations_) return nullptr;
    free_.push_back(&operations_.emplace_back());
  }
  Operation* operation = free_.back();
  free_.pop_back();
  operation->owner = owner;
  return operation;
}

Endpoint::Post Endpoint::outcome(int64_t result, Operation* operation) {
  if (result == 0) return Post::kTaken;
  free_.push_back(operation);
  return result == -FI_EAGAIN ? Post::kFull : Post::kFailed;
}

Endpoint::Post Endpoint::read(std::byte* to, std::size_t bytes, void* descriptor, RemoteRange from,
                              void* owner) {
  Operation* operation = take_operation(owner);
  if (operation == nullptr) return Post::kFull;
  return outcome(fi_read(endpoint_.get(), to, bytes, descriptor, 0, from.address, from.key,
                         &operation->context),
                 operation);
}

Endpoint::Post Endpoint::write(const std::byte* from, std::size_t bytes, void* descriptor,
                               RemoteRange to, void* owner) {
  Operation* operation = take_operation(owner);
  if (operation == nullptr) return Post::kFull;
  const iovec local{const_cast<std::byte*>(from), bytes};  // only read
  const fi_rma_iov remote{to.address, bytes, to.key};
  fi_msg_rma message{};
  message.msg_iov = &local;
  message.desc = &descriptor;
  message.iov_count = 1;
  message.rma_iov = &remote;
  message.rma_iov_count = 1;
  message.context = &operation->context;
  // With each call: what the domain was asked for, the tcp provider of 1.17 forgets.
  const uint64_t flags = FI_COMPLETION | (domain_.confirms_writes() ? FI_DELIVERY_COMPLETE : 0);
  return outcome(fi_writemsg(endpoint_.get(), &message, flags), operation);
}

Endpoint::Post Endpoint::confirm(RemoteRange written, void* owner) {
  void* descriptor = confirmed_region_ == nullptr ? nullptr : fi_mr_desc(confirmed_region_.get());
  return read(&confirmed_, 1, descriptor, written, owner);
}

int Endpoint::progress(EndpointSink& sink) {
  std::array<fi_cq_entry, 64> entries;
  int taken = 0;
  const auto finish = [&](void* context, int error) {
    if (context == nullptr) return;
    // The context is the operation's first member.
    auto* operation = static_cast<Operation*>(context);
    void* owner = operation->owner;
    free_.push_back(operation);
    ++taken;
    sink.on_completion(owner, error);
  };
  const ssize_t count = fi_cq_read(completions_.get(), entries.data(), entries.size());
  if (count == -FI_EAVAIL) {
    fi_cq_err_entry error{};
    if (fi_cq_readerr(completions_.get(), &error, 0) > 0)
      finish(error.op_context, error.err == 0 ? FI_EOTHER : error.err);
  }
  for (ssize_t i = 0; i < count; ++i) finish(entries[static_cast<std::size_t>(i)].op_context, 0);
  return taken;
}

bool Endpoint::may_sleep() {
  fid* waited = &completions_->fid;
  return fi_trywait(domain_.fabric(), &waited, 1) == FI_SUCCESS;
}

void Endpoint::close() {
  endpoint_.reset();
  completions_.reset();
}

}  // namespace inlay::net::fabric
