/* A CUDA driver and an NCCL for tests of the safe layer: they record what is asked of them, in order, and move no data but
 * that of a copy, or of an operation of a single rank.
 * Both write into one log, so that the order across the two libraries can be asserted. Misuse is a line with "BUG". */
#ifndef FAKE_H
#define FAKE_H

#include <stddef.h>
#include <stdint.h>

enum { FAKE_LINE = 400 };

/* Appends one line to the log. Safe from several threads. */
void fake_log(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* One lock for all tables of both libraries. It may be taken again by the thread that has it. */
void fake_lock(void);
void fake_unlock(void);

/* How the fakes behave from now on: one knob of fake_set. 0, the state after fake_reset, is the normal behaviour. */
enum fake_knob {
  FAKE_STREAM_BUSY,       /* so many cuStreamQuery answer "not ready" */
  FAKE_EVENTS_FAIL,       /* a bit for each cuEventRecord from now on: it fails */
  FAKE_NCCL_RESULT,       /* the next operation answers this code instead of queueing; ncclInProgress: and goes on */
  FAKE_INIT_RESULT,       /* the next initialisation leaves a communicator behind and answers this code */
  FAKE_ASYNC_RESULT,      /* ncclCommGetAsyncError reports this code */
  FAKE_CALL_MILLIS,       /* every call with a communicator, but to abort it or to ask how it is, stays inside NCCL for so
                           * long, and a launch of a graph inside CUDA; -1: until this is something else */
  FAKE_CAPTURED,          /* the stream of this number is captured; -1: one that the default stream is ordered with */
  FAKE_MANAGEMENT_RESULT, /* the next call that is no operation answers this code; ncclInProgress: and goes on */
  FAKE_DISPOSAL_RESULT,   /* the next call that takes back what was made for a communicator answers this code */
  FAKE_SPLIT_SIZE,        /* communicators that are split off have so many ranks; 0: all */
  FAKE_HANG,              /* so many operations from now on, also of graphs, do not end before they are aborted */
  FAKE_NO_WINDOWS,        /* windows and registrations are not supported: their handles are null */
  FAKE_SIMULATED_MICROS,  /* what ncclGroupSimulateEnd estimates */
  FAKE_WORKER,            /* a value of fake_worker */
  FAKE_WORKER_POLLS,      /* the ncclCommGetAsyncError of this number from now lets a held worker run */
  FAKE_DRIVER_VERSION,    /* what cuDriverGetVersion says; 0: 12000 */
  FAKE_DEVICE_COUNT,      /* what cuDeviceGetCount says; 0: all */
  FAKE_KNOBS
};
/* How non-blocking communicators do what they are asked to. */
enum fake_worker {
  FAKE_WORKER_RUNS,           /* a thread does it, soon; the call answers ncclInProgress */
  FAKE_WORKER_OFF,            /* at once, in the call */
  FAKE_WORKER_HELD,           /* the thread waits for FAKE_WORKER_RUNS; an abort drops the communicator's jobs */
  FAKE_WORKER_HELD_IN_ABORTS, /* as FAKE_WORKER_HELD, but an abort waits until the jobs are done */
};
int fake_get(int knob);
void fake_set(int knob, int value);
/* The value, which becomes 0. */
int fake_take(int knob);
/* Whether it was above 0; it becomes one less. */
int fake_count_down(int knob);

/* Stays as long as FAKE_CALL_MILLIS says, in the words of the log: inside NCCL, say. */
void fake_stay(const char *where);

/* The device whose context is current, -1 without one. */
int fake_device(void);
/* The name of a stream in the log. The text is the thread's, until the next call. */
const char *fake_stream(intptr_t stream);

/* The name of the block that an address lies in, or that ends there; 0 for none. */
int fake_block(const void *address);
/* How many bytes there are from the address to the end of its block; 0 for none. */
size_t fake_room(const void *address);
/* The address for the log: null, m2, m2+24, freed m2. The text is one of the thread's, until the fourth call after this
 * one. */
const char *fake_address(const void *address);
void *fake_allocate(size_t bytes, int by_nccl);
/* Says that `call` frees the block. */
void fake_free(void *memory, int by_nccl, const char *call);
/* From now on freeing the block is a mistake, as often as it is pinned. */
void fake_pin(int block);
void fake_unpin(int block);

/* The part of a communicator that the driver sees. */
struct fake_owner {
  int dead;
  int busy;   /* NCCL has answered "in progress", and nobody has seen that it is done */
  int stopped; /* it is suspended or revoked: no graph may use it */
  int graphs; /* the operations in graphs that live */
  /* Whether a registration or a window of the communicator has all of this memory. */
  int (*knows)(const struct fake_owner *owner, const void *start, size_t bytes);
};
/* The stream does not get on before its operation is released. */
void fake_hang(intptr_t stream, const struct fake_owner *owner);
void fake_release(const struct fake_owner *owner);
/* Under the lock: waits until something has been released, a knob set or fake_tell called, for 20 s since `start` (a
 * time of the wall clock in seconds) at most. Whether that time is over. */
int fake_wait(long start);
void fake_tell(void);
/* Returns when no graph has an operation of the owner. */
void fake_wait_for_graphs(const struct fake_owner *owner);

/* How work uses a part of a block. */
enum fake_kind {
  FAKE_NAMES, /* it must live */
  FAKE_READS,
  FAKE_WRITES,
  FAKE_RECEIVES, /* others write it, nobody here knows when, but before the work ends */
};
struct fake_use {
  int block; /* its name */
  size_t from, to;
  enum fake_kind kind;
  int known; /* a registration or a window has it, which NCCL needs until the work is launched */
};
enum { FAKE_USES = 8 };
/* What is queued on a stream. Zero, then filled in, its owner first. */
struct fake_work {
  char line[FAKE_LINE];     /* for the log */
  struct fake_owner *owner; /* null: it is not NCCL's */
  intptr_t stream;
  int late; /* it was expected */
  const void *from; /* so many bytes are copied from here to there */
  void *to;
  size_t copied;
  int count;
  struct fake_use uses[FAKE_USES];
};
/* Adds a use. `who` uses it, in the words of the mistake that it is where so much memory is not there. */
void fake_use(struct fake_work *work, const char *who, const void *start, size_t bytes, enum fake_kind kind);
/* Whether the stream is captured. If so, the work goes into the graph. -1: the capture is invalid. */
int fake_capture(const struct fake_work *work);
/* The work is launched now. Says so if its memory is gone, or if it is not ordered after what uses that, too. */
void fake_perform(const struct fake_work *work);
/* The work will be launched, or will not. It has to be ordered already, since nobody knows when that is, and until then
 * whatever else uses its memory is not ordered after it. */
void fake_expect(const struct fake_work *work);
void fake_no_longer_expect(const struct fake_work *work);
/* A mistake if the host has not waited for what the owner has launched with memory in this range. */
void fake_must_be_done(const struct fake_owner *owner, const void *start, size_t bytes, const char *call);

#endif
