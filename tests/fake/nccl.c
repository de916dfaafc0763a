/* An NCCL that queues, launches and frees nothing but says so in the log. Built with -DFAKE_VERSION=22809; with
 * -DFAKE_OLD it lacks what came after 2.18, with -DFAKE_BROKEN also ncclCommSplit. */
#include "fake.h"

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 4, INVALID_USAGE = 5, IN_PROGRESS = 7, QUEUE = 64 };

struct id { char bytes[128]; };
/* The first fields of NCCL's configuration, which every version has in these places. */
struct config { size_t size; unsigned magic, version; int blocking, cluster, min_ctas, max_ctas; const char *network; };
struct comm { int name, rank, size, device, blocking, dead; };

int fake_device(void);
int fake_block(const void *address);
void *fake_allocate(size_t bytes);
void fake_free(void *memory);

static int communicators;
static char last_error[1024];
static _Thread_local int depth, group_error, queued;
static _Thread_local char queue[QUEUE][200];

/* For the tests: names start again. */
void fake_nccl_reset(void) { communicators = 0; }

static void explain(const char *words) { snprintf(last_error, sizeof last_error, "%s", words); }

/* Communicators are never freed, so that use after the end is seen here and not by chance. */
static int usable(struct comm *comm, const char *call) {
  if (comm->dead) fake_log("BUG: %s on dead communicator %d", call, comm->name);
  return !comm->dead;
}

int ncclGetVersion(int *version) { return *version = FAKE_VERSION, SUCCESS; }
const char *ncclGetErrorString(int code) { return code == INVALID_ARGUMENT ? "invalid argument" : "fake words"; }
const char *ncclGetLastError(struct comm *comm) { return (void)comm, last_error; }
int ncclGetUniqueId(struct id *id) {
  memset(id, 0, sizeof *id);
  memcpy(id->bytes, "fake id", 8);
  return SUCCESS;
}

int ncclCommInitRankConfig(struct comm **out, int size, struct id id, int rank, struct config *config) {
  if (memcmp(id.bytes, "fake id", 8) || config->magic != 0xcafebeef) return INVALID_ARGUMENT;
  struct comm *comm = calloc(1, sizeof *comm);
  *comm = (struct comm){++communicators, rank, size, fake_device(), config->blocking != 0, 0};
  *out = comm;
  fake_log("init comm%d rank %d/%d device %d%s%s%s", comm->name, rank, size, comm->device,
           comm->blocking ? "" : " non-blocking", config->network ? " over " : "",
           config->network ? config->network : "");
  int result = fake_take(FAKE_INIT_RESULT);
  if (result) {
    explain("the fake was told to fail");
    if (depth) group_error = result;
    return result;
  }
  return comm->blocking || depth ? SUCCESS : fake_get(FAKE_ASYNC_RESULT);
}
int ncclCommGetAsyncError(struct comm *comm, int *code) {
  if (!comm) return INVALID_ARGUMENT;
  usable(comm, "ncclCommGetAsyncError");
  return *code = fake_get(FAKE_ASYNC_RESULT), SUCCESS;
}
static int end(struct comm *comm, const char *call) {
  if (!comm) return SUCCESS;
  if (!usable(comm, call)) return INVALID_ARGUMENT;
  fake_log("%s comm%d%s", call, comm->name, depth ? " INSIDE A GROUP" : "");
  comm->dead = 1;
  return SUCCESS;
}
int ncclCommAbort(struct comm *comm) { return end(comm, "abort"); }
int ncclCommDestroy(struct comm *comm) { return end(comm, "destroy"); }

int ncclGroupStart(void) { return depth++, SUCCESS; }
int ncclGroupEnd(void) {
  if (depth == 0) return INVALID_USAGE;
  if (--depth) return SUCCESS;
  int error = group_error, operations = queued;
  group_error = queued = 0;
  if (error) {
    fake_log("group of %d cancelled", operations);
    return error;
  }
  for (int i = 0; i < operations; i++) fake_log("launch %s", queue[i]);
  return operations ? fake_take(FAKE_NCCL_RESULT) : SUCCESS;
}

/* An operation: queued inside a group, else launched. */
static int operation(const char *what, const void *from, const void *to, size_t count, int type, int op,
                     struct comm *comm, intptr_t stream) {
  if (!comm) {
    explain("the communicator is null");
    if (depth) group_error = INVALID_ARGUMENT;
    return INVALID_ARGUMENT;
  }
  if (!usable(comm, what)) return INVALID_ARGUMENT;
  int millis = fake_get(FAKE_CALL_MILLIS);
  if (millis) {
    struct timespec time = {0, millis * 1000000L};
    nanosleep(&time, NULL);
    fake_log("leaving NCCL");
  }
  char source[24], line[200];
  if (fake_block(from)) snprintf(source, sizeof source, "m%d", fake_block(from));
  else snprintf(source, sizeof source, "m%d+%d", fake_block(to), (int)((const char *)from - (const char *)to));
  snprintf(line, sizeof line, "%s comm%d %s->m%d count %zu type %d op %d s%d device %d", what, comm->name, source,
           fake_block(to), count, type, op, stream ? (int)(stream - 0x1000) : 0, fake_device());
  if (depth) {
    int result = fake_take(FAKE_NCCL_RESULT);
    if (result) return explain("the fake was told to fail"), group_error = result;
    memcpy(queue[queued++ % QUEUE], line, sizeof line);
    return SUCCESS;
  }
  int result = fake_take(FAKE_NCCL_RESULT);
  if (result && result != IN_PROGRESS) return explain("the fake was told to fail"), result;
  fake_log("launch %s", line);
  return result;
}
int ncclAllReduce(const void *from, void *to, size_t count, int type, int op, struct comm *comm, intptr_t stream) {
  return operation("all_reduce", from, to, count, type, op, comm, stream);
}
int ncclAllGather(const void *from, void *to, size_t count, int type, struct comm *comm, intptr_t stream) {
  return operation("all_gather", from, to, count, type, -1, comm, stream);
}

#define UNUSED(name) \
  int name(void) { return fake_log("BUG: " #name " called"), INVALID_USAGE; }
UNUSED(ncclCommInitRank)
UNUSED(ncclCommInitAll)
#ifndef FAKE_BROKEN
UNUSED(ncclCommSplit)
#endif
UNUSED(ncclCommFinalize)
UNUSED(ncclCommCount)
UNUSED(ncclCommCuDevice)
UNUSED(ncclCommUserRank)
UNUSED(ncclRedOpCreatePreMulSum)
UNUSED(ncclRedOpDestroy)
UNUSED(ncclReduceScatter)
UNUSED(ncclReduce)
UNUSED(ncclBroadcast)
UNUSED(ncclBcast)
UNUSED(ncclSend)
UNUSED(ncclRecv)

#if !defined FAKE_OLD && !defined FAKE_BROKEN
int ncclMemAlloc(void **memory, size_t bytes) {
  *memory = fake_allocate(bytes);
  fake_log("ncclMemAlloc m%d", fake_block(*memory));
  return SUCCESS;
}
int ncclMemFree(void *memory) {
  fake_log("ncclMemFree m%d", fake_block(memory));
  fake_free(memory);
  return SUCCESS;
}
#endif
