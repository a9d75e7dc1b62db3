/* A transport for tests of what engines make of plugins: within one process, by a thread for each
 * path, which tells of ends with its lock held. It misbehaves in the manner that it is told. */
#include <inlay/transport.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum manner {
  GOOD,
  TELLS_TWICE,      /* every end, and others of nothing */
  DONE_AND_TOLD,    /* says so twice */
  REFUSED_AND_TOLD, /* the first attempt */
  UNKNOWN_CODE,     /* of the first attempt */
  LOST_IN_POST,     /* at the first attempt, twice */
  PROMISES_NOTHING_A_PATH_COULD
};
INLAY_API int odd_manner = GOOD;
INLAY_API int odd_times = 0; /* how often it still misbehaves, where it is not always */

static int misbehaves(enum manner manner) {
  return __atomic_load_n(&odd_manner, __ATOMIC_SEQ_CST) == (int)manner &&
         __atomic_sub_fetch(&odd_times, 1, __ATOMIC_SEQ_CST) >= 0;
}

typedef struct work {
  struct work* next;
  uint64_t id;
  int read;
  char* remote;
  size_t num_pieces;
  inlay_piece pieces[INLAY_MAX_RANGES];
} work;

typedef struct path {
  const inlay_host* host;
  inlay_host_path* seat;
  pthread_t thread;
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  int over;
  work *first, **end;
} path;

static void copy(const work* w) {
  for (size_t i = 0; i < w->num_pieces; ++i) {
    char* there = w->remote + w->pieces[i].remote;
    if (w->read)
      memcpy(w->pieces[i].local, there, w->pieces[i].length);
    else
      memcpy(there, w->pieces[i].local, w->pieces[i].length);
  }
}

static void* run(void* self) {
  path* p = self;
  pthread_mutex_lock(&p->mutex);
  while (!p->over) {
    work* w = p->first;
    if (w == NULL) {
      pthread_cond_wait(&p->changed, &p->mutex);
      continue;
    }
    p->first = w->next;
    if (p->first == NULL) p->end = &p->first;
    if (misbehaves(UNKNOWN_CODE)) {
      p->host->ended(p->seat, w->id, 999, 1);
    } else {
      copy(w);
      p->host->ended(p->seat, w->id, INLAY_OK, 1);
    }
    if (misbehaves(TELLS_TWICE)) {
      p->host->ended(p->seat, w->id, INLAY_PEER_DIED, 0);
      p->host->ended(p->seat, w->id + 1000000, INLAY_OK, 1);
      p->host->settled(p->seat, w->id);
      p->host->settled(p->seat, 0);
    }
    free(w);
  }
  pthread_mutex_unlock(&p->mutex);
  return NULL;
}

static void create(const inlay_site* site, inlay_new_transport* made) {
  made->self = (void*)site->host; /* lives longer */
}
static void close_transport(void* self) { (void)self; }

static size_t attach(void* self, const inlay_local* segment, void* key) {
  (void)self;
  memcpy(key, &segment->base, sizeof(segment->base));
  return sizeof(segment->base);
}
static size_t offer(void* self, void* bytes) {
  (void)self;
  *(char*)bytes = 1;
  return 1;
}

static void connect_path(void* self, const inlay_peer_offer* peer, inlay_new_path* made) {
  if (peer->index > 1) return;
  path* p = calloc(1, sizeof(*p));
  if (p == NULL) return;
  p->host = self;
  p->seat = peer->path;
  p->end = &p->first;
  pthread_mutex_init(&p->mutex, NULL);
  pthread_cond_init(&p->changed, NULL);
  pthread_create(&p->thread, NULL, run, p);
  made->self = p;
  made->name[0] = (char)('a' + peer->index);
}

static int32_t reach(void* self, const inlay_local* local, const inlay_remote_segment* remote,
                     int32_t op, inlay_reach* promised) {
  (void)self;
  (void)local;
  (void)remote;
  (void)op;
  promised->bandwidth = misbehaves(PROMISES_NOTHING_A_PATH_COULD) ? (double)NAN : 1e9;
  promised->base_s = 1e-5;
  return 1;
}

static int32_t post(void* self, const inlay_attempt* attempt) {
  path* p = self;
  work* w = malloc(sizeof(*w));
  w->next = NULL;
  w->id = attempt->id;
  w->read = attempt->op == INLAY_READ;
  memcpy(&w->remote, attempt->remote->key, sizeof(w->remote));
  w->num_pieces = attempt->num_pieces;
  memcpy(w->pieces, attempt->pieces, attempt->num_pieces * sizeof(inlay_piece));
  if (misbehaves(DONE_AND_TOLD)) {
    copy(w);
    p->host->ended(p->seat, w->id, INLAY_OK, 1);
    free(w);
    return 1;
  }
  if (misbehaves(REFUSED_AND_TOLD)) {
    p->host->ended(p->seat, w->id, INLAY_PEER_UNREACHABLE, 1);
    free(w);
    return -INLAY_TRANSPORT_UNAVAILABLE;
  }
  if (misbehaves(LOST_IN_POST)) {
    p->host->lost(p->seat, INLAY_PEER_UNREACHABLE);
    p->host->lost(p->seat, 12345);
    free(w);
    return 0;
  }
  pthread_mutex_lock(&p->mutex);
  *p->end = w;
  p->end = &w->next;
  pthread_cond_signal(&p->changed);
  pthread_mutex_unlock(&p->mutex);
  return 0;
}

static int32_t stop(void* self, uint64_t attempt, int32_t at_once) {
  path* p = self;
  (void)at_once;
  pthread_mutex_lock(&p->mutex);
  for (work** at = &p->first; *at != NULL; at = &(*at)->next) {
    work* w = *at;
    if (w->id != attempt) continue;
    *at = w->next;
    if (p->end == &w->next) p->end = at;
    free(w);
    break;
  }
  pthread_mutex_unlock(&p->mutex);
  return 0;
}

static void close_path(void* self) {
  path* p = self;
  pthread_mutex_lock(&p->mutex);
  p->over = 1;
  pthread_cond_signal(&p->changed);
  pthread_mutex_unlock(&p->mutex);
  pthread_join(p->thread, NULL);
  while (p->first != NULL) {
    work* w = p->first;
    p->first = w->next;
    free(w);
  }
  free(p);
}

const inlay_transport_ops* inlay_transport_plugin(uint32_t abi) {
  static const inlay_transport_ops ops = {
      .size = sizeof(ops),
      .name = "odd",
      .create = create,
      .close = close_transport,
      .attach = attach,
      .offer = offer,
      .connect = connect_path,
      .path_reach = reach,
      .path_post = post,
      .path_stop = stop,
      .path_close = close_path,
  };
  return abi == INLAY_TRANSPORT_ABI ? &ops : NULL;
}
