#include "plugin.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <shared_mutex>
#include <system_error>
#include <thread>

#include "../core/errors.h"
#include "plugin_path.h"
#include "returns.h"

struct inlay_host_transport {
  inlay::transfer::SegmentRegistry* segments;
};

namespace inlay::transfer {

namespace {

// A path that was lost is made anew.
constexpr std::chrono::milliseconds kFirstPluginRest(100);
constexpr std::chrono::milliseconds kLongestPluginRest(500);
constexpr std::chrono::milliseconds kRetryTime(500);

// Nothing that runs out of memory here may go through frames of C. An attempt whose end is lost
// that way ends with its deadline.
template <typename Call>
void guarded(Call&& call) noexcept {
  try {
    call();
  } catch (...) {
  }
}

PluginPath& path_of(inlay_host_path* path) { return *static_cast<PluginPath*>(path); }

void host_ended(inlay_host_path* path, uint64_t attempt, inlay_status code, int32_t settled) {
  guarded([&] { path_of(path).ended(attempt, code, settled != 0); });
}
void host_settled(inlay_host_path* path, uint64_t attempt) {
  guarded([&] { path_of(path).settled(attempt); });
}
void host_lost(inlay_host_path* path, inlay_status code) {
  guarded([&] { path_of(path).lost(code); });
}

inlay_status host_enter(inlay_host_transport* transport, uint32_t slot, uint32_t epoch, int32_t op,
                        const inlay_span* spans, size_t num_spans, inlay_use* use) {
  Status status = Status::kSegmentClosed;
  guarded([&] {
    auto held = transport->segments->use(slot, epoch);
    if (held == nullptr) return;
    const Segment& segment = held->segment();
    const Access needed = op == INLAY_READ ? Access::kRead : Access::kWrite;
    status = Status::kSegmentAccess;
    if (segment.location.place != net::Place::kHost || segment.unguarded() < needed) return;
    status = Status::kSegmentRange;
    if (!std::all_of(spans, spans + num_spans, [&](const inlay_span& span) {
          return segment.contains(span.offset, span.length);
        }))
      return;
    void* const base = segment.base;
    *use = {base, new std::shared_ptr<SegmentUse>(std::move(held))};
    status = Status::kOk;
  });
  return static_cast<inlay_status>(status);
}
void host_leave(inlay_host_transport*, inlay_use* use) {
  delete static_cast<std::shared_ptr<SegmentUse>*>(use->held);
  *use = {};
}

constexpr inlay_host kHost{sizeof(inlay_host), host_ended, host_settled,
                           host_lost,          host_enter, host_leave};

// The library's table as this version knows it; `problem` says why there is none.
PluginPath::Ops load(const Plugin& plugin, std::string& problem) {
  if (!plugin.library.starts_with('/')) {
    problem = "'" + plugin.library + "' is no absolute path of a shared library";
    return nullptr;
  }
  // Its threads and handlers may outlive the engine.
  void* const library = dlopen(plugin.library.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr) {
    problem = dlerror();  // names the file
    return nullptr;
  }
  problem = plugin.library + " ";
  using Entry = const inlay_transport_ops*(uint32_t);
  auto* const entry = reinterpret_cast<Entry*>(dlsym(library, "inlay_transport_plugin"));
  if (entry == nullptr) {
    problem += "does not export inlay_transport_plugin()";
    return nullptr;
  }
  const inlay_transport_ops* const given = entry(INLAY_TRANSPORT_ABI);
  if (given == nullptr) {
    problem += "does not serve engines of ABI " + std::to_string(INLAY_TRANSPORT_ABI);
    return nullptr;
  }
  auto ops = std::make_shared<inlay_transport_ops>();
  std::memcpy(ops.get(), given, std::min(given->size, sizeof(*ops)));
  if (ops->name == nullptr || ops->create == nullptr || ops->close == nullptr ||
      ops->attach == nullptr || ops->offer == nullptr || ops->connect == nullptr ||
      ops->path_reach == nullptr || ops->path_post == nullptr || ops->path_stop == nullptr ||
      ops->path_close == nullptr) {
    problem += "lacks functions that are not optional; its table has " +
               std::to_string(given->size) + " bytes, that of ABI " +
               std::to_string(INLAY_TRANSPORT_ABI) + " " + std::to_string(sizeof(*ops));
    return nullptr;
  }
  const std::string name(ops->name, strnlen(ops->name, INLAY_MAX_NAME + 1));
  const bool fits =
      !name.empty() && name.size() <= INLAY_MAX_NAME &&
      name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-_") == std::string::npos;
  if (!fits) {
    problem += "names its transport '" + name + "', which must be 1.." +
               std::to_string(INLAY_MAX_NAME) + " of a-z, 0-9, '-' and '_'";
    return nullptr;
  }
  if (!plugin.name.empty() && name != plugin.name) {
    problem += "is of transport '" + name + "', not '" + plugin.name + "'";
    return nullptr;
  }
  problem.clear();
  return ops;
}

class PluginTransport final : public Transport, private net::Handler {
 public:
  PluginTransport(const Site& site, const Plugin& plugin);
  ~PluginTransport() override { close(); }

  std::string_view name() const override { return name_; }
  std::string problem() const override { return problem_; }
  Bytes attach(Segment& segment) override;
  bool detach(Segment& segment, Clock::time_point until) override;
  Bytes offer() override;
  Connected connect(const std::shared_ptr<PathOwner>& peer, std::span<const std::byte> offer,
                    Clock::time_point end) override;
  Answer answer(const net::EngineId& from, std::span<const std::byte> question) override;
  void close() override;

 private:
  // One of the ways to a peer.
  struct Way {
    std::weak_ptr<PathOwner> peer;
    Bytes offer;
    uint32_t index;
  };

  bool on_events(uint32_t events) override;
  void watch(int fd);
  std::shared_ptr<PluginPath> connect(const Way& way, Clock::time_point end, std::string& problem);
  bool connect_again(const Way& way, PathOwner& peer);

  const Site site_;
  std::string name_;
  std::string problem_;
  PluginPath::Ops ops_;
  inlay_host_transport host_;
  void* self_ = nullptr;  // null: there is none, or it is closed
  net::Descriptor watched_;
  net::Loop::Id watch_id_ = 0;

  std::shared_mutex living_;  // shared by connect(), which waits
  std::mutex calls_;          // one other call into the library at a time

  std::mutex mutex_;
  std::vector<std::weak_ptr<PluginPath>> paths_;
  Returns returns_{kFirstPluginRest, kLongestPluginRest};
};

inlay_engine_id told_of(const net::EngineId& id) {
  inlay_engine_id told;
  std::memcpy(told.bytes, id.data(), sizeof(told.bytes));
  return told;
}

template <std::size_t kBytes>
std::string text_of(const char (&text)[kBytes], const char* otherwise) {
  const std::size_t bytes = strnlen(text, kBytes);
  return bytes == 0 ? otherwise : std::string(text, bytes);
}

PluginTransport::PluginTransport(const Site& site, const Plugin& plugin)
    : site_(site),
      name_(plugin.name.empty() ? plugin.library : plugin.name),
      problem_(plugin.problem),
      host_{&site.segments} {
  if (problem_.empty()) ops_ = load(plugin, problem_);
  if (ops_ == nullptr) return;
  name_ = ops_->name;
  const inlay_site told{sizeof(inlay_site),
                        &kHost,
                        &host_,
                        told_of(site_.engine),
                        site_.host.c_str(),
                        site_.runtime_dir.c_str(),
                        site_.by_name ? 1 : 0};
  inlay_new_transport made{};
  made.size = sizeof(made);
  made.fd = -1;
  ops_->create(&told, &made);
  self_ = made.self;
  if (self_ == nullptr)
    problem_ = text_of(made.problem, "it does not say why");
  else if (made.fd >= 0 && ops_->serve != nullptr)
    watch(made.fd);
}

void PluginTransport::watch(int fd) {
  watched_ = net::Descriptor(fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (!watched_.valid()) {
    problem_ = "its descriptor cannot be watched: " + std::generic_category().message(errno);
    return;
  }
  // The loop has stopped, and lets go of what it has, before this ends.
  watch_id_ = site_.loop.add(watched_, EPOLLIN, {std::shared_ptr<void>(), this});
}

bool PluginTransport::on_events(uint32_t) {
  const std::lock_guard call(calls_);
  if (self_ == nullptr) return false;
  ops_->serve(self_);
  return true;
}

Bytes PluginTransport::attach(Segment& segment) {
  if (segment.location.place != net::Place::kHost) return {};
  const inlay_local told = told_of(segment);
  Bytes key(INLAY_MAX_KEY);
  const std::lock_guard call(calls_);
  const std::size_t bytes = ops_->attach(self_, &told, key.data());
  key.resize(segment.access == Access::kNone || bytes > key.size() ? 0 : bytes);
  return key;
}

bool PluginTransport::detach(Segment& segment, Clock::time_point until) {
  constexpr std::chrono::milliseconds kAgain(1);
  if (ops_->detach == nullptr || segment.location.place != net::Place::kHost) return true;
  const inlay_local told = told_of(segment);
  for (;;) {
    {
      const std::lock_guard call(calls_);
      if (self_ == nullptr || ops_->detach(self_, &told) != 0) return true;
    }
    if (Clock::now() >= until) return false;
    std::this_thread::sleep_for(kAgain);
  }
}

Bytes PluginTransport::offer() {
  Bytes offer(INLAY_MAX_OFFER);
  const std::lock_guard call(calls_);
  const std::size_t bytes = ops_->offer(self_, offer.data());
  offer.resize(bytes > offer.size() ? 0 : bytes);
  return offer;
}

std::shared_ptr<PluginPath> PluginTransport::connect(const Way& way, Clock::time_point end,
                                                     std::string& problem) {
  const auto peer = way.peer.lock();
  const std::shared_lock living(living_);
  if (peer == nullptr || self_ == nullptr) {
    problem = "it is closed";
    return nullptr;
  }
  const auto path = std::make_shared<PluginPath>(peer, site_.loop, ops_, [this, way] {
    returns_.add(way.peer, [this, way](const auto& owner) { return connect_again(way, *owner); });
  });
  const std::chrono::duration<double> left = end - Clock::now();
  const inlay_peer_offer told{
      sizeof(inlay_peer_offer), path.get(), told_of(peer->engine_id()), way.offer.data(),
      way.offer.size(),         way.index,  std::max(left.count(), 0.0)};
  inlay_new_path made{};
  made.size = sizeof(made);
  made.fd = -1;
  ops_->connect(self_, &told, &made);
  if (made.self == nullptr) {
    problem = text_of(made.problem, "it does not say why");
    return nullptr;
  }
  try {
    path->open(made);
  } catch (const std::exception& failure) {
    ops_->path_close(made.self);
    problem = failure.what();
    return nullptr;
  }
  const std::lock_guard lock(mutex_);
  std::erase_if(paths_, [](const auto& known) { return known.expired(); });
  paths_.push_back(path);
  return path;
}

Transport::Connected PluginTransport::connect(const std::shared_ptr<PathOwner>& peer,
                                              std::span<const std::byte> offer,
                                              Clock::time_point end) {
  if (offer.empty()) return {{}, "it offers nothing"};
  Connected connected;
  Way way{peer, {offer.begin(), offer.end()}, 0};
  for (; way.index < INLAY_MAX_PATHS; ++way.index) {
    auto path = connect(way, end, connected.problem);
    if (path == nullptr) break;
    connected.paths.push_back(std::move(path));
  }
  if (!connected.paths.empty()) connected.problem.clear();
  return connected;
}

bool PluginTransport::connect_again(const Way& way, PathOwner& peer) {
  std::string problem;
  auto path = connect(way, Clock::now() + kRetryTime, problem);
  if (path == nullptr) return false;
  peer.add(std::move(path));
  return true;
}

Transport::Answer PluginTransport::answer(const net::EngineId& from,
                                          std::span<const std::byte> question) {
  if (ops_->shut == nullptr) return {Status::kProtocol, {}};
  const inlay_engine_id told = told_of(from);
  const std::lock_guard call(calls_);
  if (self_ == nullptr) return {Status::kEngineClosed, {}};
  const inlay_status code = ops_->shut(self_, &told, question.data(), question.size());
  return {code == INLAY_OK ? Status::kOk : Status::kProtocol, {}};
}

void PluginTransport::close() {
  returns_.close();
  const std::lock_guard living(living_);  // waits for connects
  if (self_ == nullptr) return;
  std::vector<std::weak_ptr<PluginPath>> paths;
  {
    const std::lock_guard lock(mutex_);
    paths.swap(paths_);
  }
  for (const auto& held : paths)
    if (const auto path = held.lock()) path->close(Status::kEngineClosed);
  if (watch_id_ != 0) site_.loop.remove(watch_id_, watched_);
  const std::lock_guard call(calls_);
  ops_->close(std::exchange(self_, nullptr));
}

}  // namespace

std::unique_ptr<Transport> make_plugin(const Site& site, const Plugin& plugin) {
  return std::make_unique<PluginTransport>(site, plugin);
}

}  // namespace inlay::transfer
