/* SPDX-License-Identifier: Apache-2.0
 *
 * Inlay's transfer engine for C, and for whatever calls C: bytes between registered memories of
 * processes. C99. What the words mean, and what holds, is in docs/transfer.md.
 *
 * - Any thread may call any function. No exception leaves the library, and it ends no process.
 * - Functions that return inlay_status return INLAY_OK (0) or a code; `error`, which may be NULL,
 *   then says more. Results are written on success only.
 * - Structs begin with `size`: set it to sizeof the struct. Later versions add fields at the end;
 *   fields that are zero mean the default.
 * - Handles are released once, in any order, also after the engine is closed; NULL is ignored.
 * - Strings are UTF-8 and end with 0. Times are seconds, more than 0 and at most 1e6.
 * - A forked child must make its own engine; its parent's answers INLAY_ENGINE_CLOSED there.
 */
#ifndef INLAY_TRANSFER_H_
#define INLAY_TRANSFER_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define INLAY_API __attribute__((visibility("default")))

/* A call that fails leaves everything as it was, except where it says otherwise. */
typedef uint32_t inlay_status;
enum {
  INLAY_OK = 0,
  INLAY_SEGMENT_NOT_FOUND = 1, /* the peer has none of this name; the text names those it has */
  INLAY_SEGMENT_RANGE = 2,     /* a range reaches beyond its segment */
  INLAY_SEGMENT_ACCESS = 3,    /* read-only memory, or not offered for this */
  INLAY_SEGMENT_OVERLAP = 4,   /* other registered memory lies there */
  INLAY_SEGMENT_CLOSED = 5,    /* it is deregistered */
  INLAY_PEER_UNREACHABLE = 10, /* nobody answers there */
  INLAY_PEER_DIED = 11,        /* its process ended, or closed the connection */
  INLAY_PEER_REFUSED = 12,     /* it holds another token */
  INLAY_PROTOCOL = 13,         /* no Inlay engine, or damaged frames */
  INLAY_PROTOCOL_VERSION = 14, /* no version that both speak */
  INLAY_TIMEOUT = 20,          /* the batch's deadline passed */
  INLAY_CANCELLED = 21,        /* the batch was cancelled */
  INLAY_STORAGE_FULL = 22,     /* no room on the disk of a file segment */
  INLAY_FILE = 23,             /* the system did not read or write the file */
  INLAY_CHECKSUM = 24,         /* verified bytes came damaged again and again */
  INLAY_DEVICE = 25,           /* a GPU did not copy its bytes */
  INLAY_TRANSPORT_UNAVAILABLE = 30,
  INLAY_ENGINE_CLOSED = 31, /* or the parent's, in a forked child */
  INLAY_ADDRESS_IN_USE = 32,
  INLAY_GRANT = 33, /* a write without the grant that its range needs */
  /* Of calls of this interface alone: */
  INLAY_ARGUMENT = 200,     /* a wrong argument; the text names it */
  INLAY_WAIT_TIMEOUT = 201, /* not over in time; what was waited for goes on */
  INLAY_RESOURCE = 202,     /* the system has no more memory, threads or descriptors */
  INLAY_INTERNAL = 203      /* a bug of ours */
};

typedef struct inlay_error {
  size_t size;
  inlay_status code;
  int32_t remote_settled; /* 1: nothing can land at the peer any more, 0: it may, -1: not known */
  char text[512];
  char peer[64];     /* address of the engine at the other end, or "" */
  char segment[256]; /* name of the segment at fault, or "" */
} inlay_error;

typedef struct inlay_engine inlay_engine;
typedef struct inlay_segment inlay_segment; /* registered memory of this process */
typedef struct inlay_peer inlay_peer;       /* a connected engine */
typedef struct inlay_remote inlay_remote;   /* a segment of a peer */
typedef struct inlay_batch inlay_batch;     /* transfers that were submitted together */
typedef struct inlay_message inlay_message; /* what a peer told this engine */

/* 1. It changes when a program that was compiled with an older header would break. */
INLAY_API uint32_t inlay_transfer_abi(void);

/* ---- engine -------------------------------------------------------------------------------- */

typedef struct inlay_engine_options {
  size_t size;
  const char* listen; /* "host:port", port 0 for any; NULL: "127.0.0.1:0" */
  const void* token;  /* 16 to 64 bytes that both ends hold */
  size_t token_bytes;
  int32_t spin_us; /* how long a thread looks for more before it sleeps; 0: 50, negative: not */
  /* Absolute paths of libraries with more transports (transport.h). One that does not work here
   * makes the call fail with INLAY_TRANSPORT_UNAVAILABLE. */
  const char* const* plugins;
  size_t num_plugins;
} inlay_engine_options;

INLAY_API inlay_status inlay_engine_open(const inlay_engine_options* options, inlay_engine** engine,
                                         inlay_error* error);
/* Where it listens, with the port that was chosen. Valid until the engine is closed. */
INLAY_API const char* inlay_engine_address(const inlay_engine* engine);
/* Fails what runs, leaves all peers, lets go of all segments, and releases the handle. When it
 * returns INLAY_OK, nothing touches registered memory any more; after INLAY_WAIT_TIMEOUT the engine
 * is closed, but the handle is still there: call again. */
INLAY_API inlay_status inlay_engine_close(inlay_engine* engine, double timeout_s,
                                          inlay_error* error);

/* ---- segments ------------------------------------------------------------------------------ */

/* What peers may do with a segment; writing includes reading. */
enum { INLAY_ACCESS_NONE = 0, INLAY_ACCESS_READ = 1, INLAY_ACCESS_WRITE = 2 };

/* Makes zeroed memory and registers it. `name`: 1 to 255 bytes, unique in the engine; NULL: one is
 * made up. The memory stays until the segment is both deregistered and released. */
INLAY_API inlay_status inlay_segment_allocate(inlay_engine* engine, uint64_t bytes,
                                              const char* name, int32_t remote_access,
                                              inlay_segment** segment, inlay_error* error);
/* Registers the caller's memory, which must stay in place until deregistration has returned
 * INLAY_OK or the engine is closed. Memory that cannot be written can only be a source. */
INLAY_API inlay_status inlay_segment_register(inlay_engine* engine, void* data, uint64_t bytes,
                                              const char* name, int32_t remote_access,
                                              inlay_segment** segment, inlay_error* error);
/* Registers memory of a CUDA device, as cudaMalloc gives it; what holds for the caller's memory
 * holds for it. `address`: its first byte; `location`: the device, such as "cuda:0", or NULL for
 * that which it is of. What computes on the device must have written it before a batch reads it.
 * INLAY_TRANSPORT_UNAVAILABLE: CUDA does not work here, INLAY_ARGUMENT: it is not memory of that
 * device. CUDA is started by the first call, after which this process must not fork. */
INLAY_API inlay_status inlay_segment_register_device(inlay_engine* engine, uint64_t address,
                                                     uint64_t bytes, const char* location,
                                                     const char* name, int32_t remote_access,
                                                     inlay_segment** segment, inlay_error* error);
/* NULL of memory that no pointer of this process reaches. */
INLAY_API void* inlay_segment_data(const inlay_segment* segment);
INLAY_API uint64_t inlay_segment_bytes(const inlay_segment* segment);
/* Closed at once for new uses; INLAY_OK when nobody uses it, INLAY_WAIT_TIMEOUT: call again.
 * `cancel`: not 0 ends the batches that use it, and the lanes of peers that are sent its bytes. */
INLAY_API inlay_status inlay_segment_deregister(inlay_segment* segment, int32_t cancel,
                                                double timeout_s, inlay_error* error);
/* Of the handle alone: what is registered stays so until the engine is closed. */
INLAY_API void inlay_segment_release(inlay_segment* segment);

/* ---- peers --------------------------------------------------------------------------------- */

/* The living connection to that engine, or a new one, after which nothing can land any more that
 * was sent on an earlier one. */
INLAY_API inlay_status inlay_peer_connect(inlay_engine* engine, const char* address,
                                          double timeout_s, inlay_peer** peer, inlay_error* error);
/* 1 while its connection lives, else 0. */
INLAY_API int32_t inlay_peer_alive(const inlay_peer* peer);
/* The segment of that name; asked for once, then remembered until it is closed. */
INLAY_API inlay_status inlay_peer_segment(inlay_peer* peer, const char* name, double timeout_s,
                                          inlay_remote** segment, inlay_error* error);
INLAY_API uint64_t inlay_remote_bytes(const inlay_remote* segment);
/* 1 where this engine may write, else 0. */
INLAY_API int32_t inlay_remote_writable(const inlay_remote* segment);
INLAY_API void inlay_remote_release(inlay_remote* segment);
INLAY_API void inlay_peer_release(inlay_peer* peer);

/* ---- batches ------------------------------------------------------------------------------- */

enum { INLAY_READ = 0, INLAY_WRITE = 1 }; /* seen from the process that submits */

typedef struct inlay_range {
  uint64_t local; /* offsets inside the two segments */
  uint64_t remote;
  uint64_t length;
} inlay_range;

/* One transfer: any number of ranges between two segments. */
typedef struct inlay_request {
  size_t size;
  int32_t op;
  const inlay_segment* local;
  const inlay_remote* remote;
  const inlay_range* ranges;
  size_t num_ranges;
} inlay_request;

typedef struct inlay_submit_options {
  size_t size;
  double deadline_s;         /* 0: 30; INFINITY: none */
  int32_t verify;            /* 1: a CRC32C of what lands is compared with that of what was sent */
  const void* notification;  /* not NULL: each peer gets it as a message when the batch is done */
  size_t notification_bytes; /* at most 256 KiB */
} inlay_submit_options;

/* Starts all requests (an array; its first element's size is that of each) and copies what it needs
 * of the arguments; they may mix peers and directions. When one is wrong, nothing is started. Local
 * memory must not be changed (WRITE) or looked at (READ) before the batch is over. */
INLAY_API inlay_status inlay_submit(inlay_engine* engine, const inlay_request* requests,
                                    size_t count, const inlay_submit_options* options,
                                    inlay_batch** batch, inlay_error* error);
/* Moves the batch's bytes until it is over: INLAY_OK, or the first failure. `timeout_s` may be 0,
 * and negative for no limit. */
INLAY_API inlay_status inlay_batch_wait(inlay_batch* batch, double timeout_s, inlay_error* error);
/* Ends it; returns when nothing of it touches local memory. `settled`, which may be NULL: 0 when
 * writes that the peer did not answer within `timeout_s` may still land there. */
INLAY_API inlay_status inlay_batch_cancel(inlay_batch* batch, double timeout_s, int32_t* settled,
                                          inlay_error* error);
/* A descriptor that is readable once the batch is over, for poll, epoll or an event loop. It
 * belongs to the handle. */
INLAY_API inlay_status inlay_batch_fd(inlay_batch* batch, int32_t* fd, inlay_error* error);
/* 1 when it is over: complete, failed, cancelled or late. */
INLAY_API int32_t inlay_batch_done(const inlay_batch* batch);
/* 1 when it is over and nothing of it can land at a peer any more. */
INLAY_API int32_t inlay_batch_settled(const inlay_batch* batch);

typedef struct inlay_transfer_status {
  size_t size;
  int32_t done;      /* 1: all its bytes are there */
  inlay_status code; /* INLAY_OK while it runs, and when it is done */
  uint64_t bytes_done;
} inlay_transfer_status;

/* How far request `index` of the submission is. */
INLAY_API inlay_status inlay_batch_status(inlay_batch* batch, size_t index,
                                          inlay_transfer_status* status, inlay_error* error);
/* Of the handle alone: the batch goes on. */
INLAY_API void inlay_batch_release(inlay_batch* batch);

/* ---- messages ------------------------------------------------------------------------------ */

/* Returns when the peer's engine has the message, once, or fails; then it may have it nevertheless.
 * `topic`: at most 255 bytes, `body` at most 256 KiB. */
INLAY_API inlay_status inlay_peer_send(inlay_peer* peer, const char* topic, const void* body,
                                       size_t bytes, double deadline_s, inlay_error* error);
/* Takes the oldest message that this engine has; waits for one, INLAY_WAIT_TIMEOUT if none comes.
 * `timeout_s` may be 0. */
INLAY_API inlay_status inlay_engine_receive(inlay_engine* engine, double timeout_s,
                                            inlay_message** message, inlay_error* error);

/* Valid until the message is released. */
typedef struct inlay_message_parts {
  size_t size;
  const char* engine_id; /* the sender's, 32 hexadecimal digits */
  const char* topic;     /* "" of notifications */
  const void* body;
  size_t bytes;
  int32_t notification; /* 1: the bytes of a batch are complete */
} inlay_message_parts;

INLAY_API inlay_status inlay_message_look(const inlay_message* message, inlay_message_parts* parts,
                                          inlay_error* error);
INLAY_API void inlay_message_release(inlay_message* message);

#ifdef __cplusplus
}
#endif

#endif /* INLAY_TRANSFER_H_ */
