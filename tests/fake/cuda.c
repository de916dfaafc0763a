/* Fake CUDA driver: streams, events and the other functions that cudarc and the safe layer use. Memory is host memory.
 * Handles are small numbers: the log names the first stream s1, the first event e1. */
#include "cuda.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

enum { DEVICES = 4, ATTRIBUTE_MEMORY_POOLS = 115, EXTRA_CONTEXT = 100, PATIENCE_SECONDS = 20, NON_BLOCKING = 1 };

static struct stream streams[STREAMS];
static struct event events[EVENTS];
static int stream_count, event_count;
/* Destroyed events, whose handles are used again once there are no others. */
static char is_destroyed[EVENTS];
/* Parts of the capture of FAKE_CAPTURED: an event recorded on a captured stream, a stream that waits for it. */
static intptr_t captured_event, captured_stream;
/* Condition of fake_wait. */
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static _Thread_local intptr_t current;

void streams_reset(void) {
  memset(streams, 0, sizeof streams);
  memset(events, 0, sizeof events);
  memset(is_destroyed, 0, sizeof is_destroyed);
  stream_count = event_count = 0;
  current = 0;
  captured_reset();
}
void captured_reset(void) { captured_event = captured_stream = 0; }

int fake_device(void) { return current ? (int)((current - 1) % EXTRA_CONTEXT) : -1; }

int stream_number(intptr_t stream) { return stream > 0x1000 ? (int)(stream - 0x1000) % STREAMS : 0; }
struct stream *stream_of(intptr_t stream) { return &streams[stream_number(stream)]; }
int event_number(intptr_t event) { return (int)(event - 0x2000) % EVENTS; }
struct event *event_of(intptr_t event) { return &events[event_number(event)]; }
const char *fake_stream(intptr_t stream) {
  static _Thread_local char name[24];
  snprintf(name, sizeof name, stream ? "s%d" : "default", (int)(stream - 0x1000));
  return name;
}

int cuInit(unsigned flags) { return flags ? INVALID_VALUE : 0; }
int cuDriverGetVersion(int *version) {
  int told = fake_get(FAKE_DRIVER_VERSION);
  return *version = told ? told : 12000, 0;
}
int cuDeviceGetCount(int *count) {
  int told = fake_get(FAKE_DEVICE_COUNT);
  return *count = told ? told : DEVICES, 0;
}
int cuDeviceGet(int *device, int ordinal) {
  *device = ordinal;
  return ordinal < 0 || ordinal >= DEVICES ? 101 : 0;
}
int cuDeviceGetAttribute(int *value, int attribute, int device) {
  (void)device;
  return *value = attribute == ATTRIBUTE_MEMORY_POOLS && !fake_get(FAKE_NO_POOLS), 0;
}
/* Devices 0 to 2 are peers. */
int cuDeviceCanAccessPeer(int *can, int device, int peer) { return *can = device != peer && device < 3 && peer < 3, 0; }
int cuDeviceGetMemPool(intptr_t *pool, int device) { return *pool = 0x3000 + device, 0; }
struct pool_access { int kind, device, flags; };
int cuMemPoolSetAccess(intptr_t pool, const struct pool_access *access, size_t count) {
  for (size_t i = 0; i < count; i++)
    fake_log("pool%d opens to %d%s", (int)(pool - 0x3000), access[i].device,
             access[i].kind == 1 && access[i].flags == 3 ? "" : " BUG");
  return 0;
}
int cuDevicePrimaryCtxRetain(intptr_t *context, int device) { return *context = device + 1, 0; }
int cuDevicePrimaryCtxRelease_v2(int device) { return device < 0; }
int cuCtxCreate_v3(intptr_t *context, void *parameters, int count, unsigned flags, int device) {
  (void)parameters, (void)count, (void)flags;
  return *context = current = device + 1 + EXTRA_CONTEXT, 0;
}
int cuCtxDestroy_v2(intptr_t context) { return context == 0; }
int cuCtxGetCurrent(intptr_t *context) { return *context = current, 0; }
/* Number of copies that block other calls. */
static int copying;
/* Under the lock. */
static void wait_for_copies(const char *call) {
  long start = time(NULL);
  if (copying) fake_log("%s waits for a copy", call);
  while (copying && !fake_wait(start)) {
  }
}
int cuCtxSetCurrent(intptr_t context) {
  fake_lock();
  wait_for_copies("cuCtxSetCurrent");
  fake_unlock();
  return current = context, 0;
}

int cuStreamCreate(intptr_t *stream, unsigned flags) {
  fake_lock();
  if (stream_count == STREAMS - 1) fake_log("BUG: too many streams for the fake");
  *stream = 0x1000 + ++stream_count;
  *stream_of(*stream) = (struct stream){.device = fake_device()};
  order_new_stream(stream_number(*stream), !(flags & NON_BLOCKING));
  fake_unlock();
  return 0;
}
int cuStreamDestroy_v2(intptr_t stream) {
  fake_lock();
  if (stream_of(stream)->capture) fake_log("BUG: %s destroyed while it is captured", fake_stream(stream));
  fake_unlock();
  return stream == 0;
}

void fake_hang(intptr_t stream, const struct fake_owner *owner) {
  fake_lock();
  if (!stream_of(stream)->hung) stream_of(stream)->hung = owner;
  fake_unlock();
}
void fake_release(struct fake_owner *owner) {
  fake_lock();
  owner->released = 1;
  for (int i = 0; i < STREAMS; i++)
    if (streams[i].hung == owner) streams[i].hung = NULL;
  for (int i = 0; i < EVENTS; i++)
    if (events[i].hung == owner) events[i].hung = NULL;
  fake_proceed();
  fake_unlock();
}
void fake_tell(void) { pthread_cond_broadcast(&changed); }
int fake_wait(long start) {
  const struct timespec limit = {.tv_sec = start + PATIENCE_SECONDS};
  return pthread_cond_timedwait(&changed, &fake_mutex, &limit) != 0;
}
static int is_busy(int stream) { return streams[stream].hung || effects_wait(stream); }
/* Waits, under the lock, until the stream no longer hangs. */
static void wait_for(int number) {
  long start = time(NULL);
  while (is_busy(number) && !fake_wait(start)) {
  }
  if (is_busy(number)) fake_log("BUG: waited %d s for an operation that nobody aborts", PATIENCE_SECONDS);
  order_stream_done(number);
}
void fake_wait_for_device(int device) {
  fake_lock();
  for (int i = 0; i <= stream_count && i < STREAMS; i++) {
    long start = time(NULL);
    while (streams[i].device == device && effects_wait(i) && !fake_wait(start)) {
    }
    if (streams[i].device == device && effects_wait(i))
      fake_log("BUG: waited %d s for %s of a device whose memory is freed", PATIENCE_SECONDS,
               fake_stream(0x1000 + i));
  }
  fake_unlock();
}
void copy_blocks(intptr_t stream) {
  long start = time(NULL);
  fake_lock();
  int blocks = fake_get(FAKE_BLOCKING_COPIES);
  copying += blocks;
  while (effects_wait(stream_number(stream)) && !fake_wait(start)) {
  }
  if (blocks) wait_for(stream_number(stream));
  copying -= blocks;
  fake_tell();
  fake_unlock();
}
void fake_wait_for_graphs(const struct fake_owner *owner) {
  long start = time(NULL);
  fake_lock();
  while (owner->graphs && !fake_wait(start)) {
  }
  if (owner->graphs) fake_log("BUG: waited %d s for graphs that nobody drops", PATIENCE_SECONDS);
  fake_unlock();
}

/* Querying or waiting for a captured stream is refused and invalidates the capture; for other streams, the call may wait
 * for other work. */
static int refused(intptr_t stream, const char *call) {
  int capture = stream_of(stream)->capture;
  if (capture) capture_invalidate(capture, call);
  return capture ? CAPTURE_UNSUPPORTED : capture_refuses_unsafe(call);
}
int cuStreamQuery(intptr_t stream) {
  fake_lock();
  int code = refused(stream, "cuStreamQuery");
  if (!code && (fake_count_down(FAKE_STREAM_BUSY) || is_busy(stream_number(stream)))) code = NOT_READY;
  if (!code) order_stream_done(stream_number(stream));
  fake_unlock();
  return code;
}
int cuStreamSynchronize(intptr_t stream) {
  fake_lock();
  int code = refused(stream, "cuStreamSynchronize");
  if (!code && fake_get(FAKE_WAITS_FAIL)) code = ILLEGAL_ADDRESS;
  if (!code) {
    fake_log("synchronize %s", fake_stream(stream));
    wait_for(stream_number(stream));
    copy_late();
  }
  fake_unlock();
  return code;
}
int cuCtxSynchronize(void) {
  fake_lock();
  int code = capture_refuses_context(fake_device(), "cuCtxSynchronize");
  for (int i = 0; !code && i <= stream_count && i < STREAMS; i++)
    if (streams[i].device == fake_device()) wait_for(i);
  fake_unlock();
  return code;
}

/* True if the stream is captured according to FAKE_CAPTURED. Under the lock. */
static int captured(intptr_t stream) {
  int knob = fake_get(FAKE_CAPTURED);
  return knob > 0 && (stream == 0x1000 + knob || stream == captured_stream);
}
/* The default stream is that of the current context. */
int cuStreamIsCapturing(intptr_t stream, int *status) {
  if (!stream && !current) return INVALID_CONTEXT;
  fake_lock();
  int implicit = !stream && fake_get(FAKE_CAPTURED) < 0;
  *status = captured(stream) ? 1 : capture_state(stream_of(stream)->capture);
  if (fake_get(FAKE_CAPTURE_LATER) == 1) begin_relaxed_capture(stream);
  fake_count_down(FAKE_CAPTURE_LATER);
  fake_unlock();
  return implicit ? CAPTURE_IMPLICIT : 0;
}

int cuEventCreate(intptr_t *event, unsigned flags) {
  (void)flags;
  fake_lock();
  int number = event_count + 1;
  while (number >= EVENTS && number < 2 * EVENTS && !is_destroyed[number % EVENTS]) number++;
  if (number == 2 * EVENTS) fake_log("BUG: too many events for the fake");
  event_count += number < EVENTS;
  *event = 0x2000 + number % EVENTS;
  is_destroyed[number % EVENTS] = 0;
  *event_of(*event) = (struct event){0};
  order_new_event(event_number(*event));
  fake_unlock();
  return 0;
}
int cuEventDestroy_v2(intptr_t event) {
  fake_lock();
  is_destroyed[event_number(event)] = 1;
  fake_unlock();
  return event == 0;
}
int cuEventRecord(intptr_t event, intptr_t stream) {
  fake_lock();
  int failures = fake_take(FAKE_EVENTS_FAIL), fails = failures & 1;
  if (failures) fake_set(FAKE_EVENTS_FAIL, failures >> 1);
  const struct stream *from = stream_of(stream);
  int code = fails ? ILLEGAL_ADDRESS : capture_state(from->capture) == 2 ? CAPTURE_INVALIDATED : 0;
  if (!code) {
    *event_of(event) = (struct event){stream_number(stream), from->capture, from->work, from->hung,
                                       from->capture ? 0 : effects_queued(stream_number(stream)), 1};
    if (!from->capture) order_record(event_number(event), stream_number(stream));
    if (captured(stream)) captured_event = event;
    fake_log("e%d records %s", (int)(event - 0x2000), fake_stream(stream));
  }
  fake_unlock();
  return code;
}

/* A wait in a capture: work of a capture may only depend on work of the same one. */
static int depend(struct stream *stream, const struct event *event) {
  if (capture_state(stream->capture) == 2) return CAPTURE_INVALIDATED;
  if (!event->recorded) return 0;
  if (!stream->capture && event->capture) {
    if (!capture_state(event->capture)) return CAPTURED_EVENT;
    if (stream == &streams[0]) return CAPTURE_IMPLICIT;
    *stream = (struct stream){.device = stream->device, .capture = event->capture};
  } else if (stream->capture != event->capture) {
    int merge = capture_state(event->capture);
    capture_invalidate(stream->capture, merge ? "an event of another capture" : "an event from outside");
    return merge ? CAPTURE_MERGE : CAPTURE_ISOLATION;
  }
  if (stream->capture) {
    stream->work++;
    streams[event->stream].joined = event->work;
  }
  return 0;
}
int cuStreamWaitEvent(intptr_t stream, intptr_t event, unsigned flags) {
  (void)flags;
  fake_lock();
  if (captured_event && event == captured_event) captured_stream = stream;
  int code = depend(stream_of(stream), event_of(event));
  if (!code) {
    fake_log("%s waits e%d", fake_stream(stream), (int)(event - 0x2000));
    if (!stream_of(stream)->capture) order_wait(stream_number(stream), event_number(event));
    if (event_of(event)->hung) fake_hang(stream, event_of(event)->hung);
    effects_await(stream, event_of(event)->stream, event_of(event)->effects);
  }
  fake_unlock();
  return code;
}
static int is_pending(const struct event *event) {
  return event->hung || !effects_done(event->stream, event->effects);
}
/* Queries of a captured event are refused and invalidate the capture. The first query of a record finds its work under
 * way, unless the host has waited for it. */
int cuEventQuery(intptr_t event) {
  fake_lock();
  wait_for_copies("cuEventQuery");
  struct event *asked = event_of(event);
  int is_new = asked->recorded == 1 && !order_host_knows(event_number(event));
  int code = asked->capture ? CAPTURED_EVENT : is_pending(asked) || is_new ? NOT_READY : 0;
  if (asked->capture) capture_invalidate(asked->capture, "cuEventQuery");
  if (asked->recorded) asked->recorded = 2;
  int refused = capture_refuses_unsafe("cuEventQuery");
  if (refused) code = refused;
  if (!code) order_event_done(event_number(event));
  fake_unlock();
  return code;
}
int cuEventSynchronize(intptr_t event) {
  long start = time(NULL);
  fake_lock();
  int code = event_of(event)->capture ? CAPTURED_EVENT : 0;
  if (!code) {
    fake_log("synchronize e%d", (int)(event - 0x2000));
    while (is_pending(event_of(event)) && !fake_wait(start)) {
    }
    if (is_pending(event_of(event)))
      fake_log("BUG: waited %d s for an operation that nobody aborts", PATIENCE_SECONDS);
    order_event_done(event_number(event));
  }
  fake_unlock();
  return code;
}

int cuGetErrorName(int code, const char **name) {
  (void)code;
  return *name = "FAKE_ERROR", 0;
}
int cuGetErrorString(int code, const char **words) {
  (void)code;
  return *words = "a failure of the fake driver", 0;
}
