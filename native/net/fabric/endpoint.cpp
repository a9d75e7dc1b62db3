#include "endpoint.h"

#include <algorithm>

#include "../../core/status.h"

namespace inlay::net::fabric {

namespace {

// More than fill any link; providers offer thousands where each costs memory.
constexpr std::size_t kMaxOperations = 256;

}  // namespace

Endpoint::Endpoint(Domain& domain, const fi_info& info, fi_wait_obj wait) : domain_(domain) {
  const Library& library = domain_.library();
  max_message_ = info.ep_attr->max_msg_size;
  max_operations_ = std::min(info.tx_attr->size, kMaxOperations);
  fi_cq_attr attributes{};
  attributes.size = max_operations_;
  attributes.format = FI_CQ_FORMAT_CONTEXT;
  attributes.wait_obj = wait;
  fid_cq* completions = nullptr;
  require(library, "fi_cq_open", fi_cq_open(domain_.domain(), &attributes, &completions, nullptr));
  completions_.reset(completions);
  // Not changed by libfabric, which takes no pointer to const.
  fid_ep* endpoint = nullptr;
  require(library, "fi_endpoint",
          fi_endpoint(domain_.domain(), const_cast<fi_info*>(&info), &endpoint, nullptr));
  endpoint_.reset(endpoint);
  bind("fi_ep_bind(cq)", completions->fid, FI_TRANSMIT | FI_RECV);
}

void Endpoint::bind(const char* what, fid& object, uint64_t flags) {
  require(domain_.library(), what, fi_ep_bind(endpoint_.get(), &object, flags));
}

void Endpoint::enable() { require(domain_.library(), "fi_enable", fi_enable(endpoint_.get())); }

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
  turned_away_ = result == -FI_EAGAIN;
  if (result == 0) return Post::kTaken;
  free_.push_back(operation);
  return turned_away_ ? Post::kFull : Post::kFailed;
}

Endpoint::Post Endpoint::read(std::byte* to, std::size_t bytes, void* descriptor, RemoteRange from,
                              void* owner) {
  Operation* operation = take_operation(owner);
  if (operation == nullptr) return Post::kFull;
  return outcome(fi_read(endpoint_.get(), to, bytes, descriptor, peer_, from.address, from.key,
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
  message.addr = peer_;
  message.rma_iov = &remote;
  message.rma_iov_count = 1;
  message.context = &operation->context;
  // With each call: what the domain was asked for, the tcp provider of 1.17 forgets.
  const uint64_t flags = FI_COMPLETION | (domain_.confirms_writes() ? FI_DELIVERY_COMPLETE : 0);
  return outcome(fi_writemsg(endpoint_.get(), &message, flags), operation);
}

Endpoint::Post Endpoint::peek(RemoteRange from, std::size_t bytes, void* owner) {
  void* descriptor = nullptr;
  if ((domain_.info().domain_attr->mr_mode & FI_MR_LOCAL) != 0) {
    try {
      if (!peeked_region_)
        peeked_region_ = domain_.register_memory(peeked_.data(), kMaxPeek, {true, false, false});
    } catch (const TransferFailure&) {
      return Post::kFailed;
    }
    descriptor = peeked_region_->descriptor();
  }
  return read(peeked_.data(), std::min(bytes, kMaxPeek), descriptor, from, owner);
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
  on_progress(taken);
  return taken;
}

void Endpoint::close() {
  endpoint_.reset();
  addresses_.reset();
  completions_.reset();
}

}  // namespace inlay::net::fabric
