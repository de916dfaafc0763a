/* A CUDA driver and an NCCL for tests of the safe layer: they record what is asked of them, in order, and do nothing.
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
  FAKE_EVENT_FAILS,       /* the cuEventRecord of this number from now fails */
  FAKE_NCCL_RESULT,       /* the next operation answers this code instead of queueing; ncclInProgress: and goes on */
  FAKE_INIT_RESULT,       /* the next initialisation leaves a communicator behind and answers this code */
  FAKE_ASYNC_RESULT,      /* ncclCommGetAsyncError reports this code */
  FAKE_CALL_MILLIS,       /* every operation stays inside NCCL for so long; -1: until this is something else */
  FAKE_CAPTURED,          /* the stream of this number is captured; -1: one that the default stream is ordered with */
  FAKE_MANAGEMENT_RESULT, /* the next call that is no operation answers this code; ncclInProgress: and goes on */
  FAKE_SPLIT_SIZE,        /* communicators that are split off have so many ranks; 0: all */
  FAKE_HANG,              /* so many operations from now on, also of graphs, do not end before they are aborted */
  FAKE_NO_WINDOWS,        /* windows and registrations are not supported: their handles are null */
  FAKE_SIMULATED_MICROS,  /* what ncclGroupSimulateEnd estimates */
  FAKE_KNOBS
};
int fake_get(int knob);
/* The value, which becomes 0. */
int fake_take(int knob);
/* Whether it was above 0; it becomes one less. */
int fake_count_down(int knob);

/* The device whose context is current, -1 without one. */
int fake_device(void);
/* The name of a stream in the log. The text is the thread's, until the next call. */
const char *fake_stream(intptr_t stream);

/* The name of the block that an address lies in, or that ends there; 0 for none. */
int fake_block(const void *address);
/* How many bytes there are from the address to the end of its block; 0 for none. */
size_t fake_room(const void *address);
/* The address for the log: null, m2, m2+24. The text is one of the thread's, until the fourth call after this one. */
const char *fake_address(const void *address);
void *fake_allocate(size_t bytes, int by_nccl);
/* Says that `call` frees the block. */
void fake_free(void *memory, int by_nccl, const char *call);
/* From now on freeing the block is a mistake, as often as it is pinned. */
void fake_pin(int block);
void fake_unpin(int block);

/* The part of a communicator that hangs and graphs see. */
struct fake_owner {
  int dead;
  int graphs; /* the operations in graphs that live */
};
/* The stream does not get on before its operation is released. */
void fake_hang(intptr_t stream, const struct fake_owner *owner);
void fake_release(const struct fake_owner *owner);
/* Returns when no graph has an operation of the owner. */
void fake_wait_for_graphs(const struct fake_owner *owner);

/* Whether the stream is captured. If so, the line, which uses these addresses, goes into the graph. -1: the capture is
 * invalid. The owner may be null. */
int fake_capture(intptr_t stream, struct fake_owner *owner, const void *from, const void *to, const char *line);

#endif
