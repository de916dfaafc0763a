/* Declarations of the fake CUDA driver. Everything is under fake_lock. */
#ifndef CUDA_H
#define CUDA_H

#include "fake.h"

#include <pthread.h>

enum {
  INVALID_VALUE = 1,
  OUT_OF_MEMORY,
  INVALID_CONTEXT = 201,
  ILLEGAL_STATE = 401,
  NOT_READY = 600,
  ILLEGAL_ADDRESS = 700,
  CAPTURE_UNSUPPORTED = 900,
  CAPTURE_INVALIDATED,
  CAPTURE_MERGE,
  CAPTURE_UNMATCHED,
  CAPTURE_UNJOINED,
  CAPTURE_ISOLATION,
  CAPTURE_IMPLICIT,
  CAPTURED_EVENT,
  CAPTURE_WRONG_THREAD,
};

enum { STREAMS = 256, EVENTS = 1024 };

struct stream {
  int device;
  int capture;                   /* number of its capture, or 0 */
  int work, joined;              /* captured work, and the part of it that another stream waits for */
  const struct fake_owner *hung; /* owner of the operation that it waits for */
};
struct event {
  int stream, capture, work; /* state of the stream at the record */
  const struct fake_owner *hung;
  unsigned long effects; /* number of the stream's effects */
  int recorded;
};

/* A launched use of memory, or (clock NEVER) a future one. */
struct access {
  size_t from, to;
  int writes, stream;
  unsigned clock; /* of the stream, at the launch */
  const struct fake_owner *owner;
  char what[128];
};
enum { ACCESSES = 32 };
/* Memory. It keeps its address and name after it was freed, so that its use is detected. */
struct block {
  char *start;
  size_t bytes;
  int name, by_nccl, freed;
  int pins, graphs; /* number of registrations and windows, number of graph nodes */
  int effects;      /* number of effects that wait */
  int count;        /* number of accesses */
  struct access accesses[ACCESSES];
};
/* NULL if it does not exist. */
struct block *block_of(int name);
/* The same for an address; the block may have been freed. */
struct block *block_at(const void *address);

/* By number; the default streams are number 0. */
struct stream *stream_of(intptr_t stream);
struct event *event_of(intptr_t event);
int event_number(intptr_t event);
int stream_number(intptr_t stream);

extern pthread_mutex_t fake_mutex;

/* The capture of a stream: 0 none, 1 active, 2 invalid. */
int capture_state(int capture);
void capture_invalidate(int capture, const char *why);
void begin_relaxed_capture(intptr_t stream);
/* A wait for the whole context. 0 or the error. */
int capture_refuses_context(int device, const char *call);
/* A call that may wait for other work. 0 or the error. */
int capture_refuses_unsafe(const char *call);

/* Like fake_perform; `who` names the caller in messages about mistakes. */
void perform(const struct fake_work *work, const char *who);

/* order.c: streams and events by number. */
void order_new_stream(int stream, int blocking);
void order_new_event(int event);
void order_record(int event, int stream);
void order_wait(int stream, int event);
/* The host has observed that all of it is done. */
void order_stream_done(int stream);
void order_event_done(int event);
/* True if the host has waited for all work of the event. */
int order_host_knows(int event);
/* The host frees a block. */
void order_free(const struct block *block, const char *call);
void order_reset(void);

/* A copy to pageable memory, which waits for the stream's effects; with FAKE_BLOCKING_COPIES also for operations that
 * hang. */
void copy_blocks(intptr_t stream);
/* Copies to the host that FAKE_WAITS_FAIL has delayed. */
void copy_late(void);

/* effects.c: streams by number. */
/* Number of effects so far that had to wait. */
unsigned long effects_queued(int stream);
/* True if this many of them have come. */
int effects_done(int stream, unsigned long queued);
/* True if any are to come. */
int effects_wait(int stream);
/* Makes the effects of a stream wait for these of another one. */
void effects_await(intptr_t stream, int other, unsigned long queued);
void effects_reset(void);

void streams_reset(void);
/* Clears the parts of the capture of FAKE_CAPTURED. */
void captured_reset(void);
void memory_reset(void);
void graphs_reset(void);

#endif
