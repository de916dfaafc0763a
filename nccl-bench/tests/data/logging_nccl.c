/* The log of NCCL 2.28.9, for the fake NCCL: of a job of one host, where all ranks connect by P2P.
 *
 * It is compiled together with the fake, whose ncclCommInitRankConfig and ncclCommDestroy have other names in it: these
 * call them. For the fake each rank is alone, since it knows no other processes. NCCL writes the end of all communicators of
 * a process when the last one of them is destroyed. */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

struct comm;
struct id { char bytes[128]; };

/* Renamed by the command line of the compiler. */
int ncclCommInitRankConfig(struct comm **out, int size, struct id id, int rank, void *config);
int ncclCommDestroy(struct comm *comm);
static int fake_init(struct comm **out, struct id id, void *config) {
  return ncclCommInitRankConfig(out, 1, id, 0, config);
}
static int fake_destroy(struct comm *comm) {
  return ncclCommDestroy(comm);
}
#undef ncclCommInitRankConfig
#undef ncclCommDestroy

int ncclCommCuDevice(struct comm *comm, int *device);

enum { RANKS = 16 };

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static FILE *file;
/* The communicators of this process, and the number of those that are not destroyed. */
static struct member { struct comm *comm; int rank, size, device; } members[RANKS];
static int count, alive;

/* Writes the beginning of a line. Under the mutex. */
static FILE *begin(const struct member *member) {
  char host[64] = "";
  gethostname(host, sizeof host - 1);
  if (!file) {
    file = fopen(getenv("NCCL_DEBUG_FILE"), "w");
    setvbuf(file, NULL, _IOLBF, BUFSIZ);
  }
  fprintf(file, "%s:%d:%d [%d] NCCL INFO ", host, getpid(), gettid(), member->device);
  return file;
}
/* The numbers of a communicator, as NCCL writes them. */
static FILE *numbers(const struct member *member, const char *before, const char *nvml) {
  FILE *log = begin(member);
  fprintf(log, "%scomm %p rank %d nranks %d cudaDev %d", before, (void *)member->comm, member->rank, member->size,
          member->device);
  if (*nvml) fprintf(log, " %s %d", nvml, member->device);
  fprintf(log, " busId %x", 0x10 + 0x10 * member->device);
  return log;
}
static void write_beginning(const struct member *member) {
  fprintf(begin(member), "NCCL version 2.28.9+cuda13.0\n");
  fprintf(numbers(member, "ncclCommInitRankConfig ", "nvmlDev"), " commId 0x77 - Init START\n");
  fprintf(begin(member), "comm %p rank %d nRanks %d nNodes 1 localRanks %d localRank %d MNNVL 0\n",
          (void *)member->comm, member->rank, member->size, member->size, member->rank);
  for (int peer = 0; peer < member->size; peer++)
    if (peer != member->rank)
      fprintf(begin(member), "Channel 00/0 : %d[%d] -> %d[%d] via P2P/CUMEM\n", member->rank, member->rank, peer, peer);
  fprintf(begin(member), "Connected all rings, use ring PXN 0 GDR 1\n");
  fprintf(numbers(member, "ncclCommInitRankConfig ", "nvmlDev"), " commId 0x77 - Init COMPLETE\n");
}

/* True for the rank that a variable of the environment names. */
static int is_named(const char *variable, int rank) {
  const char *named = getenv(variable);
  return named && atoi(named) == rank;
}

int ncclCommInitRankConfig(struct comm **out, int size, struct id id, int rank, void *config) {
  int code = fake_init(out, id, config);
  if (code) return code;
  pthread_mutex_lock(&mutex);
  struct member *member = &members[count++];
  *member = (struct member){.comm = *out, .rank = rank, .size = size};
  ncclCommCuDevice(*out, &member->device);
  write_beginning(member);
  alive++;
  pthread_mutex_unlock(&mutex);
  return code;
}

int ncclCommDestroy(struct comm *comm) {
  int rank = -1;
  pthread_mutex_lock(&mutex);
  for (int i = 0; i < count; i++)
    if (members[i].comm == comm) rank = members[i].rank;
  pthread_mutex_unlock(&mutex);
  if (is_named("TEST_DYING_RANK", rank)) kill(getpid(), SIGKILL);
  if (is_named("TEST_LATE_RANK", rank)) sleep(1);
  int code = fake_destroy(comm);
  pthread_mutex_lock(&mutex);
  if (--alive == 0)
    for (int i = 0; i < count; i++) fprintf(numbers(&members[i], "", ""), " - Destroy COMPLETE\n");
  pthread_mutex_unlock(&mutex);
  return code;
}
