/* What the files of the fake CUDA driver share. All of it under fake_lock. */
#ifndef CUDA_H
#define CUDA_H

#include "fake.h"

#include <pthread.h>

enum {
  INVALID_VALUE = 1,
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
  int capture;                   /* the number of the capture that it is part of, or 0 */
  int work, joined;              /* how much was captured on it, and how much of that another stream waits for */
  const struct fake_owner *hung; /* whose operation it waits for */
};
struct event {
  int stream, capture, work; /* as the stream was when it recorded */
  const struct fake_owner *hung;
};

/* A use of memory that was launched, or (clock NEVER) will be. */
struct access {
  size_t from, to;
  int writes, stream;
  unsigned clock; /* of the stream, when it was launched */
  const struct fake_owner *owner;
  char what[128];
};
enum { ACCESSES = 32 };
/* Memory. It keeps its address and its name when it has been freed, so that its use is seen. */
struct block {
  char *start;
  size_t bytes;
  int name, by_nccl, freed;
  int pins, graphs; /* in registrations and the like, in nodes of graphs */
  int count;        /* of the accesses */
  struct access accesses[ACCESSES];
};
/* NULL when there is none, or no longer. */
struct block *block_of(int name);

/* By number; the default streams are number 0. */
struct stream *stream_of(intptr_t stream);
struct event *event_of(intptr_t event);
int event_number(intptr_t event);
int stream_number(intptr_t stream);

extern pthread_mutex_t fake_mutex;

/* The capture of a stream: 0 none, 1 active, 2 invalid. */
int capture_state(int capture);
void capture_invalidate(int capture, const char *why);
/* A wait for the whole context. 0 or why it is refused. */
int capture_refuses_context(int device, const char *call);
/* A call that may wait for other work. 0 or why it is refused. */
int capture_refuses_unsafe(const char *call);

/* As fake_perform; `who` does it, in the words of mistakes. */
void perform(const struct fake_work *work, const char *who);

/* order.c: streams and events by number. */
void order_new_stream(int stream, int blocking);
void order_new_event(int event);
void order_record(int event, int stream);
void order_wait(int stream, int event);
/* The host has seen that all of it is done. */
void order_stream_done(int stream);
void order_event_done(int event);
/* The host frees a block. */
void order_free(const struct block *block, const char *call);
void order_reset(void);

void streams_reset(void);
/* Forgets what the capture of FAKE_CAPTURED has drawn in. */
void captured_reset(void);
void memory_reset(void);
void graphs_reset(void);

#endif
