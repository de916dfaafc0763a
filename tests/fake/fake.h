/* A fake CUDA driver and a fake NCCL for tests of the safe layer: they record calls in order, and move no data except for
 * copies and operations of a single rank, or with FAKE_MOVES_DATA.
 * Both write into one log, so that the order across the two libraries can be asserted. Misuse is a line with "BUG". */
#ifndef FAKE_H
#define FAKE_H

#include <stddef.h>
#include <stdint.h>

enum { FAKE_LINE = 400 };

/* Appends one line to the log. Safe from several threads. */
void fake_log(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Recursive lock for all tables of both libraries. */
void fake_lock(void);
void fake_unlock(void);

/* Settings of the fakes, for fake_set. 0, the value after fake_reset, is the normal behaviour. */
enum fake_knob {
  FAKE_STREAM_BUSY,       /* number of cuStreamQuery calls that return "not ready" */
  FAKE_EVENTS_FAIL,       /* bitmask of the following cuEventRecord calls that fail */
  FAKE_NCCL_RESULT,       /* the next operation returns this code instead of queueing; ncclInProgress: it continues */
  FAKE_INIT_RESULT,       /* the next initialisation creates a communicator and returns this code */
  FAKE_ASYNC_RESULT,      /* ncclCommGetAsyncError reports this code */
  FAKE_CALL_MILLIS,       /* duration of calls with a communicator, except aborts and queries, inside NCCL, and of
                           * launches of graphs inside CUDA; -1: until the value changes */
  FAKE_CAPTURED,          /* the stream with this number is captured; -1: one that the default stream is ordered with */
  FAKE_MANAGEMENT_RESULT, /* the next management call returns this code; ncclInProgress: it continues */
  FAKE_DISPOSAL_RESULT,   /* the next call that deregisters or destroys an object of a communicator, or destroys a graph,
                           * returns this code */
  FAKE_SPLIT_SIZE,        /* number of ranks of split communicators; 0: all */
  FAKE_HANG,              /* number of operations, also of graphs, that hang until they are aborted */
  FAKE_NO_WINDOWS,        /* windows and registrations are not supported: their handles are null */
  FAKE_SIMULATED_MICROS,  /* estimate of ncclGroupSimulateEnd */
  FAKE_WORKER,            /* a value of fake_worker */
  FAKE_WORKER_POLLS,      /* number of the ncclCommGetAsyncError call that lets a held worker run */
  FAKE_DRIVER_VERSION,    /* result of cuDriverGetVersion; 0: 12000 */
  FAKE_DEVICE_COUNT,      /* result of cuDeviceGetCount; 0: all */
  FAKE_BLOCKING_COPIES,   /* copies to the host wait for their stream, and cuEventQuery and cuCtxSetCurrent for them */
  FAKE_NO_MEMORY,         /* cuMemAllocAsync fails */
  FAKE_WAITS_FAIL,        /* cuStreamSynchronize fails, and copies to the host are done at the next one that does not */
  FAKE_MOVES_DATA,        /* operations wait for the other ranks of their communicator, which are in this process, and
                           * exchange data with them. Set before communicators are created. A value of fake_aborts */
  FAKE_ONLY_MISTAKES,     /* the log has only mistakes */
  FAKE_CAPTURE_LATER,     /* after the cuStreamIsCapturing call with this number, its stream is captured */
  FAKE_NO_POOLS,          /* devices have no memory pools */
  FAKE_FAILING_ALLOC,     /* the cuMemAlloc call with this number fails */
  FAKE_KNOBS
};
/* Execution of calls of non-blocking communicators. */
enum fake_worker {
  FAKE_WORKER_RUNS,           /* by a thread, soon; the call returns ncclInProgress */
  FAKE_WORKER_OFF,            /* in the call */
  FAKE_WORKER_HELD,           /* the thread waits for FAKE_WORKER_RUNS; an abort drops the communicator's jobs */
  FAKE_WORKER_HELD_IN_ABORTS, /* like FAKE_WORKER_HELD, but an abort waits until the jobs are done */
};
/* Effect of an abort on operations of other ranks that wait for the aborted one. */
enum fake_aborts {
  FAKE_ABORTS_HANG = 1, /* they go on waiting */
  FAKE_ABORTS_MISLEAD,  /* they complete with undefined data, as NCCL's can: an aborted kernel goes on without waiting */
};
int fake_get(int knob);
void fake_set(int knob, int value);
/* Returns the value and sets it to 0. */
int fake_take(int knob);
/* Decrements the value if it is above 0, and returns true then. */
int fake_count_down(int knob);

/* Sleeps for FAKE_CALL_MILLIS; the text names the place in the log. */
void fake_stay(const char *where);

/* Device of the current context, -1 without one. */
int fake_device(void);
/* Name of a stream in the log. The text is thread-local, until the next call. */
const char *fake_stream(intptr_t stream);

/* Name of the block that contains an address, or ends there; 0 for none. */
int fake_block(const void *address);
/* Number of bytes from the address to the end of its block; 0 for none. */
size_t fake_room(const void *address);
/* The address for the log: null, m2, m2+24, freed m2. The text is thread-local, and valid until the fourth call after
 * this one. */
const char *fake_address(const void *address);
void *fake_allocate(size_t bytes, int by_nccl);
/* Logs that `call` frees the block. */
void fake_free(void *memory, int by_nccl, const char *call);
/* Makes freeing the block a mistake; counted. */
void fake_pin(int block);
void fake_unpin(int block);

/* The part of a communicator that the driver sees. */
struct fake_owner {
  int dead;
  int busy;   /* NCCL has returned "in progress", and its completion was not queried yet */
  int stopped; /* suspended or revoked: no graph may use it */
  int graphs; /* number of operations in live graphs */
  int released; /* its operations do not wait any more */
  unsigned long operations; /* number of its collectives so far */
  /* True if a registration or window of the communicator contains all of this memory. */
  int (*knows)(const struct fake_owner *owner, const void *start, size_t bytes);
};
/* Blocks the stream until its operation is released. */
void fake_hang(intptr_t stream, const struct fake_owner *owner);
void fake_release(struct fake_owner *owner);
/* Under the lock: waits until a stream is released, a setting changes or fake_tell is called, until 20 s after `start`
 * (wall clock in seconds) at most. Returns true if that time is over. */
int fake_wait(long start);
void fake_tell(void);
/* Waits until no stream of the device waits for other ranks. */
void fake_wait_for_device(int device);
/* Waits until no graph has an operation of the owner. */
void fake_wait_for_graphs(const struct fake_owner *owner);

/* Use of a part of a block by work. */
enum fake_kind {
  FAKE_NAMES, /* it must be allocated */
  FAKE_READS,
  FAKE_WRITES,
  FAKE_RECEIVES, /* others write it at an unknown time before the work ends */
};
struct fake_use {
  int block; /* its name */
  size_t from, to;
  enum fake_kind kind;
  int known; /* in a registration or window, which NCCL needs until the launch */
};
/* Effect of work on memory. */
struct fake_effect {
  /* True once it is complete; otherwise it is called again. Null: there is none. */
  int (*run)(const struct fake_effect *effect);
  const void *from;
  void *to;
  size_t bytes;
  int from_host; /* `from` is not valid after the call */
  int value;
  unsigned long number, *numbers; /* counts the work, if any */
  /* NCCL's operation. */
  void *comm;
  const char *what;
  size_t count;
  int type, op, other, reads, writes;
};
/* Lets the effect come in the order of the stream. */
void fake_do(intptr_t stream, const struct fake_effect *effect);
/* Under the lock: lets effects come that could not before. */
void fake_proceed(void);
/* Effects: copying bytes, and setting them to a value. */
int fake_copy(const struct fake_effect *effect);
int fake_fill(const struct fake_effect *effect);

enum { FAKE_USES = 8 };
/* Work that is queued on a stream. Zero it, then fill in the fields, the owner first. */
struct fake_work {
  char line[FAKE_LINE];     /* for the log */
  struct fake_owner *owner; /* null if it is not NCCL's */
  intptr_t stream;
  int late; /* it was expected */
  struct fake_effect effect;
  int count;
  struct fake_use uses[FAKE_USES];
};
/* Adds a use, which is a mistake if the memory is not allocated. `who` names the user in its message. */
void fake_use(struct fake_work *work, const char *who, const void *start, size_t bytes, enum fake_kind kind);
/* True if the stream is captured; the work is then added to the graph. -1: the capture is invalid. */
int fake_capture(const struct fake_work *work);
/* Launches the work. Logs a mistake if its memory was freed, or if it is not ordered after other uses of it. */
void fake_perform(const struct fake_work *work);
/* Announces work that may be launched at an unknown time. It must be ordered already, and until the launch no other use
 * of its memory is ordered after it. */
void fake_expect(const struct fake_work *work);
void fake_no_longer_expect(const struct fake_work *work);
/* A mistake if the host has not waited for the owner's work with memory in this range. */
void fake_must_be_done(const struct fake_owner *owner, const void *start, size_t bytes, const char *call);

#endif
