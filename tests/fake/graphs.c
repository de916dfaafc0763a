/* Captures of the fake CUDA driver, and their graphs. The first capture creates graph1, even if it fails. A graph repeats
 * the captured lines. */
#include "cuda.h"

#include <stdio.h>
#include <string.h>

enum { GRAPHS = 64, NODES = 64, GLOBAL = 0, THREAD_LOCAL, RELAXED };

static struct graph {
  int state;  /* see capture_state */
  int origin; /* the number of the stream */
  int mode;
  const void *thread;
  int exists, executables; /* the graph itself, and what was instantiated from it: the nodes live as long as any */
  int count;
  struct fake_work nodes[NODES];
} graphs[GRAPHS];
static int captures;
static _Thread_local char me;
/* Captures that forbid this thread's blocking calls: all (GLOBAL), its own, or none. */
static _Thread_local int heeded;

void graphs_reset(void) {
  memset(graphs, 0, sizeof graphs);
  captures = 0;
}

static struct graph *graph_of(intptr_t handle) { return &graphs[handle % GRAPHS]; }

int capture_state(int capture) { return graphs[capture % GRAPHS].state; }
void capture_invalidate(int capture, const char *why) {
  if (graphs[capture].state != 1) return;
  graphs[capture].state = 2;
  fake_log("capture %d is invalid: %s", capture, why);
}
int capture_refuses_context(int device, const char *call) {
  int code = 0;
  for (int i = 1; i <= captures; i++)
    if (graphs[i].state && stream_of(0x1000 + graphs[i].origin)->device == device) {
      capture_invalidate(i, call);
      code = CAPTURE_UNSUPPORTED;
    }
  return code;
}
int capture_refuses_unsafe(const char *call) {
  int code = 0;
  fake_lock();
  for (int i = 1; i <= captures; i++) {
    const struct graph *graph = &graphs[i];
    int other = graph->thread != &me;
    if (!graph->state || graph->mode == RELAXED || heeded == RELAXED) continue;
    if (!other || (graph->mode == GLOBAL && heeded == GLOBAL)) {
      capture_invalidate(i, call);
      code = CAPTURE_UNSUPPORTED;
    }
  }
  fake_unlock();
  return code;
}

/* True if its blocks may be freed. */
static void pin(const struct fake_work *node, int pins) {
  for (int i = 0; i < node->count; i++) {
    struct block *block = block_of(node->uses[i].block);
    if (block) block->graphs += pins;
  }
  if (node->owner) node->owner->graphs += pins;
}
int fake_capture(const struct fake_work *work) {
  fake_lock();
  struct stream *captured = stream_of(work->stream);
  struct graph *graph = &graphs[captured->capture];
  int answer = !captured->capture ? 0 : graph->state == 1 ? 1 : -1;
  if (answer == 1 && graph->count == NODES) fake_log("BUG: too many operations in a graph for the fake");
  else if (answer == 1) {
    graph->nodes[graph->count++] = *work;
    pin(work, 1);
    captured->work++;
    fake_log("capture %s", work->line);
  }
  fake_unlock();
  return answer;
}

static void drop_unused(struct graph *graph) {
  if (graph->exists || graph->executables) return;
  for (int i = 0; i < graph->count; i++) pin(&graph->nodes[i], -1);
  graph->count = 0;
  fake_tell();
}

int cuThreadExchangeStreamCaptureMode(int *mode) {
  int before = heeded;
  if (*mode < GLOBAL || *mode > RELAXED) return INVALID_VALUE;
  heeded = *mode;
  return *mode = before, 0;
}
int cuStreamBeginCapture_v2(intptr_t stream, int mode) {
  fake_lock();
  struct stream *origin = stream_of(stream);
  int code = stream < 0x1000 ? CAPTURE_UNSUPPORTED : origin->capture ? ILLEGAL_STATE : 0;
  if (!code && captures + 1 == GRAPHS) fake_log("BUG: too many captures for the fake");
  else if (!code) {
    origin->capture = ++captures;
    graphs[captures] = (struct graph){.state = 1, .origin = stream_number(stream), .mode = mode, .thread = &me};
    fake_log("begin capture %s", fake_stream(stream));
  }
  fake_unlock();
  return code;
}
void begin_relaxed_capture(intptr_t stream) { cuStreamBeginCapture_v2(stream, RELAXED); }
int cuStreamEndCapture(intptr_t stream, intptr_t *out) {
  fake_lock();
  *out = 0;
  int capture = stream_of(stream)->capture, code = 0;
  struct graph *graph = &graphs[capture];
  if (!capture) code = ILLEGAL_STATE;
  else if (graph->origin != stream_number(stream)) code = CAPTURE_UNMATCHED;
  else if (graph->mode != RELAXED && graph->thread != &me) code = CAPTURE_WRONG_THREAD;
  if (code) {
    if (capture) capture_invalidate(capture, "cuStreamEndCapture");
    fake_unlock();
    return code;
  }
  if (graph->state == 2) code = CAPTURE_INVALIDATED;
  for (int i = 0; i < graph->count; i++)
    if (graph->nodes[i].owner && graph->nodes[i].owner->busy)
      fake_log("BUG: the capture of %s ends while NCCL is busy with it", fake_stream(stream));
  for (int i = 0; i < STREAMS; i++) {
    struct stream *part = stream_of(0x1000 + i);
    if (part->capture != capture) continue;
    if (!code && i != graph->origin && part->joined != part->work) code = CAPTURE_UNJOINED;
    part->capture = part->work = part->joined = 0;
  }
  graph->state = 0;
  graph->exists = !code;
  if (!code) *out = 0x4000 + capture;
  drop_unused(graph);
  fake_log(code ? "end capture %s fails" : "end capture %s graph%d", fake_stream(stream), capture);
  fake_unlock();
  return code;
}

int cuGraphInstantiateWithFlags(intptr_t *executable, intptr_t graph, unsigned long long flags) {
  (void)flags;
  fake_lock();
  graph_of(graph)->executables++;
  *executable = graph + 0x1000;
  fake_log("instantiate graph%d", (int)(graph - 0x4000));
  fake_unlock();
  return 0;
}
static int usable(intptr_t executable, const char *call) {
  int executables = graph_of(executable)->executables;
  if (!executables) fake_log("BUG: %s of a graph%d that is gone", call, (int)(executable - 0x5000));
  return executables;
}
int cuGraphUpload(intptr_t executable, intptr_t stream) {
  fake_lock();
  int code = usable(executable, "cuGraphUpload") ? 0 : INVALID_VALUE;
  if (!code) fake_log("upload graph%d on %s", (int)(executable - 0x5000), fake_stream(stream));
  fake_unlock();
  return code;
}
static void repeat(const struct fake_work *node, intptr_t stream) {
  if (node->owner && node->owner->dead) fake_log("BUG: a graph uses a communicator that is gone");
  if (node->owner && node->owner->stopped) fake_log("BUG: a graph uses a communicator that is suspended or revoked");
  fake_log("launch %s", node->line);
  struct fake_work work = *node;
  work.stream = stream;
  perform(&work, "a graph");
  if (node->owner && fake_count_down(FAKE_HANG)) fake_hang(stream, node->owner);
}
int cuGraphLaunch(intptr_t executable, intptr_t stream) {
  fake_stay("cuGraphLaunch");
  fake_lock();
  int code = usable(executable, "cuGraphLaunch") ? 0 : INVALID_VALUE;
  if (stream_of(stream)->capture) fake_log("BUG: the fake knows no graphs inside graphs");
  if (!code) {
    const struct graph *graph = graph_of(executable);
    fake_log("launch graph%d on %s", (int)(executable - 0x5000), fake_stream(stream));
    for (int i = 0; i < graph->count; i++) repeat(&graph->nodes[i], stream);
  }
  fake_unlock();
  return code;
}
int cuGraphExecDestroy(intptr_t executable) {
  fake_lock();
  int code = usable(executable, "cuGraphExecDestroy") ? 0 : INVALID_VALUE;
  if (!code) {
    graph_of(executable)->executables--;
    drop_unused(graph_of(executable));
  }
  fake_unlock();
  return code;
}
int cuGraphDestroy(intptr_t graph) {
  fake_lock();
  if (graph_of(graph)->exists) fake_log("destroy graph%d", (int)(graph - 0x4000));
  else fake_log("BUG: graph%d destroyed twice", (int)(graph - 0x4000));
  graph_of(graph)->exists = 0;
  drop_unused(graph_of(graph));
  int code = fake_take(FAKE_DISPOSAL_RESULT);
  fake_unlock();
  return code;
}
