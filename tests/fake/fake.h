/* A CUDA driver and an NCCL for tests of the safe layer: they record what is asked of them, in order, and do nothing.
 * Both write into one log, so that the order across the two libraries can be asserted. */
#ifndef FAKE_H
#define FAKE_H

/* Appends one line to the log. Safe from several threads. */
void fake_log(const char *format, ...);

/* How the fakes behave from now on: one knob of fake_set. 0, the state after fake_reset, is the normal behaviour. */
enum fake_knob {
  FAKE_STREAM_BUSY,  /* so many cuStreamQuery answer "not ready" */
  FAKE_EVENT_FAILS,  /* the cuEventRecord of this number from now fails */
  FAKE_NCCL_RESULT,  /* the next operation answers this code instead of queueing */
  FAKE_INIT_RESULT,  /* the next ncclCommInitRankConfig leaves a communicator behind and answers this code */
  FAKE_ASYNC_RESULT, /* ncclCommGetAsyncError reports this code */
  FAKE_CALL_MILLIS,  /* every operation stays inside NCCL for so long */
  FAKE_CAPTURED,     /* the stream of this number is being captured; -1: one that the default stream is ordered with */
  FAKE_KNOBS
};
int fake_get(int knob);
/* The value, which becomes 0. */
int fake_take(int knob);

#endif
