/* The worker thread of non-blocking communicators, controlled by FAKE_WORKER. It executes one job after the other, each
 * under the lock. */
#include "library.h"

#include <pthread.h>
#include <time.h>

enum { JOBS = 256 };

static struct job {
  struct comm *comm;
  int launches;
  struct fake_work work; /* if it launches */
} jobs[JOBS];
static int count;

/* Jobs of earlier tests are dropped. */
void worker_reset(void) {
  fake_lock();
  count = 0;
  fake_unlock();
}

int has_worker(const struct comm *comm) { return !comm->blocking && fake_get(FAKE_WORKER) != FAKE_WORKER_OFF; }
static int held(void) { return fake_get(FAKE_WORKER) >= FAKE_WORKER_HELD; }

void worker_polled(void) {
  if (fake_get(FAKE_WORKER_POLLS) == 1) fake_set(FAKE_WORKER, FAKE_WORKER_RUNS);
  fake_count_down(FAKE_WORKER_POLLS);
}

/* Removes a job from the list. This and the following functions run under the lock. */
static struct job take(int index) {
  struct job job = jobs[index];
  count--;
  for (int i = index; i < count; i++) jobs[i] = jobs[i + 1];
  job.comm->jobs--;
  if (job.launches) fake_no_longer_expect(&job.work);
  return job;
}
static void run(struct job *job) {
  struct comm *comm = job->comm;
  job->work.late = 1;
  /* After a failure the other jobs are dropped. */
  if (job->launches && !comm->failed) comm->failed = launch(&job->work);
  read_texts(comm);
  if (!job->launches) write_promises(comm);
  fake_tell();
}
static void *work(void *nothing) {
  fake_lock();
  for (;;) {
    if (!count || held()) {
      fake_wait(time(NULL));
      continue;
    }
    struct job job = take(0);
    run(&job);
  }
  return nothing;
}

void work_later(struct comm *comm, const struct fake_work *later) {
  static int started;
  pthread_t thread;
  fake_lock();
  if (!started) {
    started = !pthread_create(&thread, NULL, work, NULL) && !pthread_detach(thread);
    if (!started) fake_log("BUG: the fake's worker does not start");
  }
  if (count == JOBS) fake_log("BUG: too many jobs for the fake's worker");
  else {
    struct job *job = &jobs[count++];
    job->comm = comm;
    job->launches = later != NULL;
    comm->jobs++;
    if (later) {
      job->work = *later;
      if (held()) fake_log("queue %s", later->line);
      fake_expect(later);
    }
  }
  fake_tell();
  fake_unlock();
}

void stop_work(struct comm *comm) {
  long start = time(NULL);
  fake_lock();
  if (comm->jobs && held()) fake_log("comm%d waits for its worker", comm->name);
  for (int i = count - 1; fake_get(FAKE_WORKER) == FAKE_WORKER_HELD && i >= 0; i--)
    if (jobs[i].comm == comm) {
      const struct job job = take(i);
      fake_log("drop %s", job.launches ? job.work.line : "the rest");
    }
  while (comm->jobs && !fake_wait(start)) {
  }
  if (comm->jobs) fake_log("BUG: waited too long for the worker of comm%d", comm->name);
  fake_unlock();
}
