/* SPDX-License-Identifier: Apache-2.0
 *
 * A transport in one file: between processes of one host and user, over Unix sockets. The target's
 * engine answers requests in their order; what it sends and receives passes through buffers, so
 * that it uses a segment only while it copies.
 *
 *   connection   the initiator's path at the target
 *   request      head, spans, and of a WRITE the bytes;  answer   head, and of a READ the bytes
 *
 * It has no thread: paths are pumped by who waits for them, the rest is done by the engine's.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <inlay/transport.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

enum { VERSION = 1, MAX_BYTES = 64 << 20, MAX_NAME = 32 };

typedef struct offer { /* who can read it has proved to hold the engine's token */
  uint32_t version;
  uint32_t name_bytes;
  char name[MAX_NAME]; /* of an abstract socket, which the kernel chose */
  uint8_t ticket[16];
} offer;
typedef struct hello {
  uint8_t ticket[16];
  inlay_engine_id initiator;
} hello;
typedef struct request {
  uint64_t id;
  uint64_t bytes;
  uint32_t op;
  uint32_t num_spans;
  uint32_t slot;
  uint32_t epoch;
} request;
typedef struct answer {
  uint64_t id;
  uint64_t bytes;
  uint64_t code;
} answer;

/* ---- the target ---------------------------------------------------------------------------- */

typedef struct connection {
  struct connection* next;
  int fd;
  uint64_t number;
  int greeted;
  inlay_engine_id initiator;
  char* in; /* a hello or request, as far as it came */
  size_t in_room, in_bytes, in_wanted;
  char* out; /* an answer; nothing is received meanwhile */
  size_t out_room, out_bytes, out_sent;
} connection;

typedef struct transport {
  const inlay_host* host;
  inlay_host_transport* seat;
  inlay_engine_id engine;
  offer offer;
  int listener, epoll;
  uint64_t last_number;
  connection* connections;
} transport;

static int make_room(char** buffer, size_t* room, size_t wanted) {
  if (*room >= wanted) return 1;
  char* larger = realloc(*buffer, wanted);
  if (larger == NULL) return 0;
  *buffer = larger;
  *room = wanted;
  return 1;
}

static void watch(int epoll, int operation, int fd, uint32_t events, void* what) {
  struct epoll_event event = {.events = events, .data.ptr = what};
  epoll_ctl(epoll, operation, fd, &event);
}

static int want(connection* c, size_t bytes) {
  c->in_wanted = bytes;
  return make_room(&c->in, &c->in_room, bytes);
}

static void hang_up(transport* t, connection* gone) {
  for (connection** at = &t->connections; *at != NULL; at = &(*at)->next)
    if (*at == gone) {
      *at = gone->next;
      break;
    }
  close(gone->fd);
  free(gone->in);
  free(gone->out);
  free(gone);
}

static void welcome(transport* t) {
  int fd;
  while ((fd = accept4(t->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK)) >= 0) {
    connection* c = calloc(1, sizeof(*c));
    if (c == NULL || !want(c, sizeof(hello))) {
      free(c);
      close(fd);
      continue;
    }
    c->fd = fd;
    c->number = ++t->last_number;
    c->next = t->connections;
    t->connections = c;
    watch(t->epoll, EPOLL_CTL_ADD, fd, EPOLLIN, c);
  }
}

static int reply(transport* t, connection* c, const void* head, size_t head_bytes, size_t bytes) {
  if (!make_room(&c->out, &c->out_room, head_bytes + bytes)) return 0;
  memcpy(c->out, head, head_bytes);
  c->out_bytes = head_bytes + bytes;
  c->out_sent = 0;
  watch(t->epoll, EPOLL_CTL_MOD, c->fd, EPOLLOUT, c);
  return 1;
}

/* Copies between a segment and the connection's buffers. */
static int execute(transport* t, connection* c, const request* asked) {
  const inlay_span* spans = (const inlay_span*)(asked + 1);
  const int read = asked->op == INLAY_READ;
  answer answered = {asked->id, 0, 0};
  inlay_use use;
  if (read && !make_room(&c->out, &c->out_room, sizeof(answered) + asked->bytes)) return 0;
  answered.code = t->host->enter(t->seat, asked->slot, asked->epoch, (int32_t)asked->op, spans,
                                 asked->num_spans, &use);
  if (answered.code == INLAY_OK) {
    char* to = read ? c->out + sizeof(answered) : NULL;
    const char* from = (const char*)(spans + asked->num_spans);
    for (uint32_t i = 0; i < asked->num_spans; ++i) {
      char* there = (char*)use.base + spans[i].offset;
      memcpy(read ? to : there, read ? there : from, spans[i].length);
      if (read) to += spans[i].length;
      if (!read) from += spans[i].length;
    }
    t->host->leave(t->seat, &use);
    if (read) answered.bytes = asked->bytes;
  }
  return reply(t, c, &answered, sizeof(answered), answered.bytes);
}

/* What came is as long as was wanted: it is whole, or says how much more there is. */
static int understand(transport* t, connection* c) {
  if (!c->greeted) {
    hello greeting;
    memcpy(&greeting, c->in, sizeof(greeting));
    if (memcmp(greeting.ticket, t->offer.ticket, sizeof(greeting.ticket)) != 0) return 0;
    c->greeted = 1;
    c->initiator = greeting.initiator;
    return reply(t, c, &c->number, sizeof(c->number), 0);
  }
  const request* asked = (const request*)c->in;
  if (asked->num_spans == 0 || asked->num_spans > INLAY_MAX_RANGES || asked->bytes > MAX_BYTES)
    return 0;
  const size_t head = sizeof(*asked) + asked->num_spans * sizeof(inlay_span);
  if (c->in_wanted < head) return want(c, head);
  const inlay_span* spans = (const inlay_span*)(asked + 1);
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < asked->num_spans; ++i) {
    if (spans[i].length > MAX_BYTES) return 0;
    bytes += spans[i].length;
  }
  if (bytes != asked->bytes || asked->op > INLAY_WRITE) return 0;
  if (asked->op == INLAY_WRITE && c->in_wanted == head && bytes > 0) return want(c, head + bytes);
  return execute(t, c, asked);
}

static int go_on(transport* t, connection* c) {
  if (c->out_sent < c->out_bytes) {
    const ssize_t sent =
        send(c->fd, c->out + c->out_sent, c->out_bytes - c->out_sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) return errno == EAGAIN;
    c->out_sent += (size_t)sent;
    if (c->out_sent < c->out_bytes) return 1;
    c->in_bytes = 0;
    watch(t->epoll, EPOLL_CTL_MOD, c->fd, EPOLLIN, c);
    return want(c, sizeof(request));
  }
  const ssize_t got = recv(c->fd, c->in + c->in_bytes, c->in_wanted - c->in_bytes, MSG_DONTWAIT);
  if (got <= 0) return got < 0 && errno == EAGAIN;
  c->in_bytes += (size_t)got;
  return c->in_bytes < c->in_wanted || understand(t, c);
}

static void serve(void* self) {
  transport* t = self;
  struct epoll_event events[16];
  const int count = epoll_wait(t->epoll, events, 16, 0);
  for (int i = 0; i < count; ++i) {
    connection* c = events[i].data.ptr;
    if (c == NULL)
      welcome(t);
    else if (!go_on(t, c))
      hang_up(t, c);
  }
}

/* What was asked on that connection and is not done is dropped with it. */
static inlay_status shut(void* self, const inlay_engine_id* initiator, const void* fence,
                         size_t fence_bytes) {
  transport* t = self;
  uint64_t number;
  if (fence_bytes != sizeof(number)) return INLAY_PROTOCOL;
  memcpy(&number, fence, sizeof(number));
  for (connection* c = t->connections; c != NULL; c = c->next)
    if (c->number == number && memcmp(&c->initiator, initiator, sizeof(*initiator)) == 0) {
      hang_up(t, c);
      break;
    }
  return INLAY_OK;
}

static void close_transport(void* self) {
  transport* t = self;
  while (t->connections != NULL) hang_up(t, t->connections);
  close(t->epoll);
  close(t->listener);
  free(t);
}

static void create(const inlay_site* site, inlay_new_transport* made) {
  transport* t = calloc(1, sizeof(*t));
  if (t == NULL) return;
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  socklen_t bytes = sizeof(sa_family_t); /* the kernel chooses an abstract name */
  t->host = site->host;
  t->seat = site->transport;
  t->engine = site->engine;
  t->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  t->epoll = epoll_create1(EPOLL_CLOEXEC);
  if (t->listener < 0 || t->epoll < 0 ||
      bind(t->listener, (struct sockaddr*)&address, bytes) != 0 || listen(t->listener, 64) != 0 ||
      getrandom(t->offer.ticket, sizeof(t->offer.ticket), 0) != sizeof(t->offer.ticket)) {
    snprintf(made->problem, sizeof(made->problem), "it cannot listen: %s", strerror(errno));
    close_transport(t);
    return;
  }
  bytes = sizeof(address);
  getsockname(t->listener, (struct sockaddr*)&address, &bytes);
  t->offer.version = VERSION;
  t->offer.name_bytes = bytes - (socklen_t)sizeof(sa_family_t);
  memcpy(t->offer.name, address.sun_path, t->offer.name_bytes);
  watch(t->epoll, EPOLL_CTL_ADD, t->listener, EPOLLIN, NULL);
  made->self = t;
  made->fd = t->epoll;
}

static size_t attach(void* self, const inlay_local* segment, void* key) {
  (void)self;
  (void)segment;
  *(uint8_t*)key = VERSION; /* slot and epoch are all that it takes */
  return 1;
}

static size_t make_offer(void* self, void* bytes) {
  memcpy(bytes, &((transport*)self)->offer, sizeof(offer));
  return sizeof(offer);
}

/* ---- the initiator ------------------------------------------------------------------------- */

typedef struct work {
  struct work* next;
  int op;
  int unwanted; /* nothing of it touches memory here */
  uint64_t bytes;
  size_t sent, received;
  size_t num_pieces;
  struct iovec pieces[INLAY_MAX_RANGES];
  size_t head_bytes; /* of what is sent first */
  struct {
    request head;
    inlay_span spans[INLAY_MAX_RANGES];
  } asked;
} work;

typedef struct path {
  const inlay_host* host;
  inlay_host_path* seat;
  int socket, epoll;
  int over;
  work *first, **end; /* in the order of requests, and so of answers */
  work* unsent;
  answer answer;
  size_t answer_bytes;
  char unwanted[65536];
} path;

static void end_path(path* p, inlay_status code) {
  if (p->over) return;
  p->over = 1;
  shutdown(p->socket, SHUT_RDWR);
  watch(p->epoll, EPOLL_CTL_DEL, p->socket, 0, NULL);
  p->host->lost(p->seat, code);
}

static void connect_to(void* self, const inlay_peer_offer* peer, inlay_new_path* made) {
  transport* t = self;
  offer theirs;
  if (peer->index > 0) return;
  made->fd = -1;
  if (peer->offer_bytes != sizeof(theirs) ||
      (memcpy(&theirs, peer->offer, sizeof(theirs)), theirs.version != VERSION) ||
      theirs.name_bytes > MAX_NAME) {
    snprintf(made->problem, sizeof(made->problem), "it speaks another version");
    return;
  }
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  memcpy(address.sun_path, theirs.name, theirs.name_bytes);
  struct ucred who;
  socklen_t who_bytes = sizeof(who);
  hello greeting;
  uint64_t number;
  memcpy(greeting.ticket, theirs.ticket, sizeof(greeting.ticket));
  greeting.initiator = t->engine;
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  struct pollfd answered = {.fd = fd, .events = POLLIN};
  path* p = calloc(1, sizeof(*p));
  const int epoll = epoll_create1(EPOLL_CLOEXEC);
  if (p == NULL || epoll < 0 ||
      connect(fd, (struct sockaddr*)&address,
              (socklen_t)(sizeof(sa_family_t) + theirs.name_bytes)) != 0 ||
      getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &who_bytes) != 0 || who.uid != geteuid() ||
      send(fd, &greeting, sizeof(greeting), MSG_NOSIGNAL) != sizeof(greeting) ||
      poll(&answered, 1, (int)(peer->timeout_s * 1e3)) != 1 ||
      recv(fd, &number, sizeof(number), 0) != sizeof(number)) {
    snprintf(made->problem, sizeof(made->problem), "its Unix socket does not answer here");
    if (fd >= 0) close(fd);
    if (epoll >= 0) close(epoll);
    free(p);
    return;
  }
  p->host = t->host;
  p->seat = peer->path;
  p->socket = fd;
  p->epoll = epoll;
  p->end = &p->first;
  watch(epoll, EPOLL_CTL_ADD, fd, EPOLLIN, NULL);
  made->self = p;
  made->fd = epoll;
  snprintf(made->name, sizeof(made->name), "unix-socket process %d", (int)who.pid);
  memcpy(made->fence, &number, sizeof(number));
  made->fence_bytes = sizeof(number);
}

static int32_t reach(void* self, const inlay_local* local, const inlay_remote_segment* remote,
                     int32_t op, inlay_reach* promised) {
  (void)self;
  (void)local;
  (void)remote;
  (void)op;
  promised->bandwidth = 3e9;
  promised->base_s = 20e-6;
  return 1;
}

static int32_t post(void* self, const inlay_attempt* attempt) {
  path* p = self;
  if (p->over) return -INLAY_PEER_UNREACHABLE;
  if (attempt->bytes > MAX_BYTES) return -INLAY_TRANSPORT_UNAVAILABLE;
  work* w = malloc(sizeof(*w));
  if (w == NULL) return -INLAY_TRANSPORT_UNAVAILABLE;
  w->next = NULL;
  w->op = attempt->op;
  w->unwanted = 0;
  w->bytes = attempt->bytes;
  w->sent = w->received = 0;
  w->num_pieces = attempt->num_pieces;
  w->asked.head = (request){attempt->id,           attempt->bytes,
                            (uint32_t)attempt->op, (uint32_t)attempt->num_pieces,
                            attempt->remote->slot, attempt->remote->epoch};
  for (size_t i = 0; i < attempt->num_pieces; ++i) {
    const inlay_piece* piece = &attempt->pieces[i];
    w->pieces[i] = (struct iovec){piece->local, piece->length};
    w->asked.spans[i] = (inlay_span){piece->remote, piece->length};
  }
  w->head_bytes = sizeof(w->asked.head) + attempt->num_pieces * sizeof(inlay_span);
  *p->end = w;
  p->end = &w->next;
  if (p->unsent == NULL) p->unsent = w;
  return 0;
}

static void let_go(path* p, work* gone) {
  for (work** at = &p->first; *at != NULL; at = &(*at)->next)
    if (*at == gone) {
      *at = gone->next;
      if (p->end == &gone->next) p->end = at;
      break;
    }
  if (p->unsent == gone) p->unsent = gone->next;
  free(gone);
}

/* The pieces without their first `skip` bytes. */
static size_t rest_of(const work* w, size_t skip, struct iovec* rest) {
  size_t count = 0;
  for (size_t i = 0; i < w->num_pieces; ++i) {
    const size_t step = skip < w->pieces[i].iov_len ? skip : w->pieces[i].iov_len;
    skip -= step;
    if (step < w->pieces[i].iov_len)
      rest[count++] =
          (struct iovec){(char*)w->pieces[i].iov_base + step, w->pieces[i].iov_len - step};
  }
  return count;
}

static int send_some(path* p) {
  work* w = p->unsent;
  struct iovec parts[1 + INLAY_MAX_RANGES];
  size_t count = 0;
  if (w->sent < w->head_bytes)
    parts[count++] = (struct iovec){(char*)&w->asked + w->sent, w->head_bytes - w->sent};
  if (w->op == INLAY_WRITE)
    count += rest_of(w, w->sent > w->head_bytes ? w->sent - w->head_bytes : 0, parts + count);
  const struct msghdr message = {.msg_iov = parts, .msg_iovlen = count};
  const ssize_t sent = sendmsg(p->socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent < 0) {
    if (errno != EAGAIN) end_path(p, INLAY_PEER_DIED);
    return 0;
  }
  w->sent += (size_t)sent;
  if (w->sent == w->head_bytes + (w->op == INLAY_WRITE ? w->bytes : 0)) p->unsent = w->next;
  return 1;
}

/* As many bytes of the answer as there are, or of what it comes with. */
static ssize_t receive_into(path* p, work* w) {
  struct iovec parts[INLAY_MAX_RANGES] = {
      {(char*)&p->answer + p->answer_bytes, sizeof(p->answer) - p->answer_bytes}};
  size_t count = 1;
  if (p->answer_bytes == sizeof(p->answer)) {
    const size_t left = p->answer.bytes - w->received;
    parts[0] = (struct iovec){p->unwanted, left < sizeof(p->unwanted) ? left : sizeof(p->unwanted)};
    if (!w->unwanted) count = rest_of(w, w->received, parts);
  }
  struct msghdr message = {.msg_iov = parts, .msg_iovlen = count};
  const ssize_t got = recvmsg(p->socket, &message, MSG_DONTWAIT);
  if (got > 0 && p->answer_bytes < sizeof(p->answer))
    p->answer_bytes += (size_t)got;
  else if (got > 0)
    w->received += (size_t)got;
  return got;
}

static int receive_some(path* p) {
  work* w = p->first;
  work nobody = {.op = -1};
  const ssize_t got = receive_into(p, w == NULL ? &nobody : w);
  if (got <= 0) {
    if (got == 0 || errno != EAGAIN) end_path(p, INLAY_PEER_DIED);
    return 0;
  }
  if (p->answer_bytes < sizeof(p->answer)) return 1;
  const uint64_t expected =
      w != NULL && w->op == INLAY_READ && p->answer.code == INLAY_OK ? w->bytes : 0;
  if (w == NULL || w == p->unsent || p->answer.id != w->asked.head.id ||
      p->answer.bytes != expected) {
    end_path(p, INLAY_PROTOCOL);
    return 0;
  }
  if (w->received < expected) return 1;
  p->answer_bytes = 0;
  if (w->unwanted)
    p->host->settled(p->seat, w->asked.head.id);
  else
    p->host->ended(p->seat, w->asked.head.id, (inlay_status)p->answer.code, 1);
  let_go(p, w);
  return 1;
}

static int32_t pump(void* self) {
  path* p = self;
  if (p->over) return 0;
  int moved = receive_some(p);
  if (!p->over && p->unsent != NULL) moved |= send_some(p);
  if (!p->over)
    watch(p->epoll, EPOLL_CTL_MOD, p->socket, EPOLLIN | (p->unsent != NULL ? EPOLLOUT : 0), NULL);
  return moved;
}

static void kick(void* self) {
  path* p = self;
  for (int i = 0; i < 4 && !p->over && p->unsent != NULL && send_some(p);) ++i;
  if (!p->over && p->unsent != NULL)
    watch(p->epoll, EPOLL_CTL_MOD, p->socket, EPOLLIN | EPOLLOUT, NULL);
}

static int32_t stop(void* self, uint64_t attempt, int32_t at_once) {
  path* p = self;
  work* w = p->first;
  while (w != NULL && w->asked.head.id != attempt) w = w->next;
  if (w == NULL) return 0;
  if (w->sent == 0) {
    let_go(p, w);
    return 0;
  }
  if (w->op == INLAY_READ) {
    w->unwanted = 1;
    return 0;
  }
  if (at_once) w->unwanted = 1;
  if (at_once && w->sent < w->head_bytes + w->bytes) end_path(p, INLAY_PEER_UNREACHABLE);
  return 1;
}

static void close_path(void* self) {
  path* p = self;
  while (p->first != NULL) let_go(p, p->first);
  shutdown(p->socket, SHUT_RDWR);
  close(p->socket);
  close(p->epoll);
  free(p);
}

const inlay_transport_ops* inlay_transport_plugin(uint32_t abi) {
  static const inlay_transport_ops ops = {
      .size = sizeof(ops),
      .name = "unix-socket",
      .create = create,
      .close = close_transport,
      .attach = attach,
      .offer = make_offer,
      .connect = connect_to,
      .shut = shut,
      .serve = serve,
      .path_reach = reach,
      .path_post = post,
      .path_kick = kick,
      .path_pump = pump,
      .path_stop = stop,
      .path_close = close_path,
  };
  return abi == INLAY_TRANSPORT_ABI ? &ops : NULL;
}
