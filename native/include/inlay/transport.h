/* SPDX-License-Identifier: Apache-2.0
 *
 * A way to move bytes that Inlay's transfer engine does not come with: a shared library that
 * exports inlay_transport_plugin(). C99; nothing is linked. docs/transfer.md says how an engine
 * finds it, examples/transport_plugin is a whole one.
 *
 *   transport   one per engine that loads the library; makes memory reachable, connects to peers
 *   path        one way to one peer; moves slices (attempts), for the initiator
 *
 * The engine finds peers, checks what is asked, cuts slices, chooses paths, tries again elsewhere,
 * and keeps deadlines. Offers and keys reach a peer over a connection of the engine on which both
 * ends have proved to hold the token; it is not encrypted.
 *
 * What a plugin promises:
 *   - What is refused has not begun. What ends is over: nothing of it touches memory here any more,
 *     nor, where it was told to be settled, memory of the peer.
 *   - A range outside a segment, a closed segment, or one without access is never touched. Who owns
 *     the memory checks that, since initiators are other processes: host->enter() does it.
 *   - No call waits, but for what a call of its own says. No call takes more than about 100 us.
 *   - Descriptors are close-on-exec. A forked child makes its own engine; what it inherits it may
 *     only close.
 *   - It ends no process, changes no signal handler, and lets no exception out.
 *
 * What an engine promises:
 *   - Calls for one transport come one at a time, from any thread, and so do calls for one path.
 *     connect() and path_reach() come at any time beside them.
 *   - Calls of `host` are allowed inside all calls and from threads of the plugin's own, where they
 *     may be called with a lock of the plugin held: they do not come back into it.
 *   - close() comes last, after path_close() of all its paths. Nothing is used after either.
 *
 * Structs begin with `size`, sizeof the struct where it was filled in: later versions add fields at
 * the end, and read what is not there as zero. Functions said to be optional may be NULL.
 */
#ifndef INLAY_TRANSPORT_H_
#define INLAY_TRANSPORT_H_

#include "transfer.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Changes when a plugin that was built for an older header would break. */
#define INLAY_TRANSPORT_ABI 1

enum {
  INLAY_MAX_NAME = 32,  /* bytes of a transport's name */
  INLAY_MAX_KEY = 4096, /* of a segment's key */
  INLAY_MAX_OFFER = 16384,
  INLAY_MAX_FENCE = 64,
  INLAY_MAX_RANGES = 256, /* of an attempt */
  INLAY_MAX_PATHS = 16    /* of one connect */
};

typedef struct inlay_host_transport inlay_host_transport; /* the engine's side of a transport */
typedef struct inlay_host_path inlay_host_path;           /* and of a path */

typedef struct inlay_engine_id {
  uint8_t bytes[16];
} inlay_engine_id;

/* Registered host memory of this process; a plugin is shown no other. A slot is used again under
 * another epoch. */
typedef struct inlay_local {
  size_t size;
  void* base;
  uint64_t bytes;
  uint32_t slot;
  uint32_t epoch;
  int32_t access;   /* what peers may do with it: INLAY_ACCESS_... */
  int32_t writable; /* 1: by this process */
} inlay_local;

/* A segment of a peer, as its owner described it, with the key that attach() made there. */
typedef struct inlay_remote_segment {
  size_t size;
  uint64_t bytes;
  uint32_t slot;
  uint32_t epoch;
  int32_t writable; /* 1: this engine may write it */
  const void* key;
  size_t key_bytes;
} inlay_remote_segment;

typedef struct inlay_piece {
  void* local;
  uint64_t remote; /* offset in the remote segment */
  uint64_t length; /* at least 1 */
} inlay_piece;

/* One try of one slice. All that is pointed to is valid during the call. */
typedef struct inlay_attempt {
  size_t size;
  uint64_t id; /* never used again on the path */
  int32_t op;  /* INLAY_READ fills local memory */
  uint64_t bytes;
  const inlay_local* local;
  const inlay_remote_segment* remote;
  const inlay_piece* pieces;
  size_t num_pieces; /* at most INLAY_MAX_RANGES */
} inlay_attempt;

/* What a pair of memories can expect of a path; what is measured takes its place. Of several
 * transports the one that promises most is used. */
typedef struct inlay_reach {
  double bandwidth; /* bytes/s */
  double base_s;    /* of a slice of no bytes */
} inlay_reach;

typedef struct inlay_span {
  uint64_t offset;
  uint64_t length;
} inlay_span;

/* Memory of this process that is in use for a peer: it stays until leave(). */
typedef struct inlay_use {
  void* base; /* of the segment */
  void* held; /* the engine's */
} inlay_use;

/* What a plugin may ask of the engine. Of any thread. */
typedef struct inlay_host {
  size_t size;
  /* An attempt is over, once for each that was taken. INLAY_PEER_UNREACHABLE, INLAY_PEER_DIED,
   * INLAY_PROTOCOL and INLAY_TRANSPORT_UNAVAILABLE are the path's fault: the slice goes another
   * way, the path gets a rest of 100 to 500 ms. Other codes are final. `settled` 0: a write that
   * may still land; settled() tells later, or lost() and the fence. */
  void (*ended)(inlay_host_path* path, uint64_t attempt, inlay_status code, int32_t settled);
  /* Of an attempt that ended without being settled: it has landed, or cannot any more. */
  void (*settled)(inlay_host_path* path, uint64_t attempt);
  /* The path has come to its end: nothing touches memory here through it any more. What has not
   * ended ends with `code`. Writes count as settled with INLAY_PEER_DIED, and where the path has no
   * fence; else the peer's shut() settles them. path_close() follows, and, while the peer lives,
   * connect() with the same index after 100 ms, then each 500 ms. */
  void (*lost)(inlay_host_path* path, inlay_status code);
  /* For a target: what a peer may do with these bytes of a segment of ours, looked up and checked.
   * Anything but INLAY_OK is the answer for the peer, and no use. A segment that is closed waits
   * for its uses, so keep them short, and keep none while waiting for a peer. */
  inlay_status (*enter)(inlay_host_transport* transport, uint32_t slot, uint32_t epoch, int32_t op,
                        const inlay_span* spans, size_t num_spans, inlay_use* use);
  void (*leave)(inlay_host_transport* transport, inlay_use* use);
} inlay_host;

/* Where a transport lives. Valid during create(); `host` until close() returns. */
typedef struct inlay_site {
  size_t size;
  const inlay_host* host;
  inlay_host_transport* transport;
  inlay_engine_id engine;
  const char* address;     /* where the engine listens, without the port */
  const char* runtime_dir; /* of mode 0700, for this user's processes; "": there is none */
  int32_t by_name;         /* 1: the user asked for this transport by name */
} inlay_site;

/* What create() fills in; all zero before, but for `size` and `fd`, which is -1. */
typedef struct inlay_new_transport {
  size_t size;
  void* self;        /* NULL: it does not work here */
  char problem[512]; /* then why */
  int32_t fd;        /* readable when serve() has something to do, such as an epoll's; -1: never */
} inlay_new_transport;

/* What connect() is given. */
typedef struct inlay_peer_offer {
  size_t size;
  inlay_host_path* path; /* for calls of `host`, until path_close() */
  inlay_engine_id engine;
  const void* offer; /* what the peer's offer() made */
  size_t offer_bytes;
  uint32_t index;   /* which of the ways to that peer */
  double timeout_s; /* for the call */
} inlay_peer_offer;

/* What connect() fills in; as inlay_new_transport. */
typedef struct inlay_new_path {
  size_t size;
  void* self;                     /* NULL: there is none */
  char problem[512];              /* then why; looked at when there is no other path */
  char name[64];                  /* for people; the same each time that way is taken */
  int32_t fd;                     /* readable when path_pump() has something to do; -1: never */
  uint8_t fence[INLAY_MAX_FENCE]; /* what shut() will be asked at the peer */
  size_t fence_bytes;             /* 0: what has ended, or is closed, has always settled */
} inlay_new_path;

/* The plugin's table. It stays where it is. */
typedef struct inlay_transport_ops {
  size_t size;
  const char* name; /* at most INLAY_MAX_NAME of a-z, 0-9, '-' and '_'; the same at all peers */

  void (*create)(const inlay_site* site, inlay_new_transport* made);
  void (*close)(void* transport);
  /* Makes a segment reachable, or only usable from here (INLAY_ACCESS_NONE). Returns the bytes of
   * the key that peers need for it, of which there is room for INLAY_MAX_KEY; 0: no peer reaches
   * it. */
  size_t (*attach)(void* transport, const inlay_local* segment, void* key);
  /* Optional. The segment is closed. 1: no peer touches it through this transport any more; 0: ask
   * again. Uses by enter() are waited for anyway. */
  int32_t (*detach)(void* transport, const inlay_local* segment);
  /* What a peer needs to connect, at most INLAY_MAX_OFFER bytes. 0: nothing, nobody connects. */
  size_t (*offer)(void* transport, void* bytes);
  /* Way number `index` to the engine that offered this. May wait for `timeout_s`. Called with 0, 1
   * and so on until there is none, at most INLAY_MAX_PATHS times, and again for one that was lost.
   */
  void (*connect)(void* transport, const inlay_peer_offer* peer, inlay_new_path* made);
  /* Optional where no path has a fence. INLAY_OK: nothing that came over that initiator's path
   * lands here any more, now or later. */
  inlay_status (*shut)(void* transport, const inlay_engine_id* initiator, const void* fence,
                       size_t fence_bytes);
  /* Optional. `fd` is readable. On the engine's thread. */
  void (*serve)(void* transport);

  /* Whether it moves bytes between these two, and how well: 1 or 0. Pure, at most 100 ns. */
  int32_t (*path_reach)(void* path, const inlay_local* local, const inlay_remote_segment* remote,
                        int32_t op, inlay_reach* reach);
  /* 0: taken, its end will be told. 1: it is complete. -code: refused, nothing was begun. */
  int32_t (*path_post)(void* path, const inlay_attempt* attempt);
  /* Optional. Comes after any number of posts, and begins what was taken. */
  void (*path_kick)(void* path);
  /* Optional, for a path with an fd: moves bytes; 1 when some moved. By whoever waits for them, by
   * the engine's thread when nobody does. */
  int32_t (*path_pump)(void* path);
  /* Nobody wants that attempt any more. 0: nothing of it touches memory here, or will land at the
   * peer. 1, only of a write: it is under way, and goes on; `at_once`: it may still land, but
   * memory here is free. Where that cannot be had, end the path: host->lost(). */
  int32_t (*path_stop)(void* path, uint64_t attempt, int32_t at_once);
  /* The path is over, and let go of. Nothing touches memory here after it. */
  void (*path_close)(void* path);
} inlay_transport_ops;

/* What the library exports. `abi`: the engine's INLAY_TRANSPORT_ABI. NULL: not for such an engine.
 */
INLAY_API const inlay_transport_ops* inlay_transport_plugin(uint32_t abi);

#ifdef __cplusplus
}
#endif

#endif /* INLAY_TRANSPORT_H_ */
