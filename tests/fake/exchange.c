/* The data that the ranks of a communicator exchange, with FAKE_MOVES_DATA. A collective completes once the streams of all
 * ranks have come to it, and never if they have come to different ones. A send does not wait. */
#include "library.h"

#include <stdlib.h>
#include <string.h>

enum { CLIQUES = 256, RANKS = 16, GARBAGE = 0xa5 };
enum { SUM, PROD, MAX, MIN, AVG, FLOAT16 = 6, BFLOAT16 = 9 };

/* The ranks of a communicator. */
struct clique {
  uint64_t key;
  int size, ended;
  struct comm *ranks[RANKS];
  struct message {
    struct message *next;
    int from, to;
    size_t bytes;
    char data[];
  } *messages;
};
static struct clique cliques[CLIQUES];
static int count;

void exchange_reset(void) {
  memset(cliques, 0, sizeof cliques);
  count = 0;
}
void join_clique(struct comm *comm, uint64_t key) {
  if (!fake_get(FAKE_MOVES_DATA)) return;
  fake_lock();
  int i = 0;
  while (i < count && cliques[i].key != key) i++;
  if (i == CLIQUES || comm->size > RANKS) fake_log("BUG: too many communicators or ranks for the fake");
  else {
    count += i == count;
    cliques[i].key = key;
    cliques[i].size = comm->size;
    cliques[i].ranks[comm->rank] = comm;
    comm->clique = &cliques[i];
  }
  fake_unlock();
}

static float widen(uint16_t bits) {
  const uint32_t single = (uint32_t)bits << 16;
  float value;
  return memcpy(&value, &single, sizeof value), value;
}
static uint16_t narrow(float value) {
  uint32_t single;
  memcpy(&single, &value, sizeof single);
  return (uint16_t)((single + 0x7fff + (single >> 16 & 1)) >> 16);
}
#define COMBINE(type, load, store) \
  { \
    type *a = into; \
    const type *b = from; \
    for (size_t i = 0; i < count; i++) \
      if (op == MAX || op == MIN) a[i] = (load(a[i]) < load(b[i])) == (op == MAX) ? b[i] : a[i]; \
      else a[i] = (type)store(op == PROD ? load(a[i]) * load(b[i]) : load(a[i]) + load(b[i])); \
    return; \
  }
#define DIVIDE(type, load, store) \
  { \
    type *a = into; \
    for (size_t i = 0; i < count; i++) a[i] = (type)store(load(a[i]) / (type)ranks); \
    return; \
  }
#define EACH_TYPE(DO) \
  switch (type) { \
    case 0: DO(int8_t, , ) \
    case 1: DO(uint8_t, , ) \
    case 2: DO(int32_t, , ) \
    case 3: DO(uint32_t, , ) \
    case 4: DO(int64_t, , ) \
    case 5: DO(uint64_t, , ) \
    case 7: DO(float, , ) \
    case 8: DO(double, , ) \
    case BFLOAT16: DO(uint16_t, widen, narrow) \
  }
static void combine(void *into, const void *from, size_t count, int type, int op) { EACH_TYPE(COMBINE) }
static void divide(void *into, size_t count, int type, int ranks) { EACH_TYPE(DIVIDE) }

/* The sum, product, maximum, minimum or average of all ranks' blocks. */
static void reduce(const struct clique *clique, char *into, int block, const struct fake_effect *effect) {
  const size_t bytes = effect->count * type_size(effect->type);
  for (int rank = 0; rank < clique->size; rank++) {
    const char *from = (const char *)clique->ranks[rank]->current.from + (size_t)block * bytes;
    if (rank == 0) memcpy(into, from, bytes);
    else combine(into, from, effect->count, effect->type, effect->op);
  }
  if (effect->op == AVG) divide(into, effect->count, effect->type, clique->size);
}
/* Writes the data that a rank receives to `into`. Returns the number of bytes. */
static size_t receive(const struct clique *clique, int rank, const struct fake_effect *effect, char *into) {
  const size_t bytes = effect->count * type_size(effect->type);
  const int block = effect->reads == ALL || effect->reads == ALL_AT_ROOT ? rank : 0;
  const int at_root = effect->writes == ONE_AT_ROOT || effect->writes == ALL_AT_ROOT;
  if (at_root && rank != effect->other) return 0;
  if (effect->op >= 0) return reduce(clique, into, block, effect), bytes;
  const int all = effect->writes == ALL || effect->writes == ALL_AT_ROOT;
  for (int from = 0; from < clique->size; from++) {
    const char *sent = clique->ranks[from]->current.from;
    if (all || from == effect->other) memcpy(into + (all ? (size_t)from * bytes : 0), sent + (size_t)block * bytes, bytes);
  }
  return all ? bytes * (size_t)clique->size : bytes;
}
/* Moves the data of all ranks. Input and output of a rank may be the same memory. */
static void move(const struct clique *clique) {
  char *received[RANKS];
  size_t bytes[RANKS];
  for (int rank = 0; rank < clique->size; rank++) {
    const struct fake_effect *effect = &clique->ranks[rank]->current;
    received[rank] = malloc(effect->count * type_size(effect->type) * (size_t)clique->size + 1);
    bytes[rank] = receive(clique, rank, effect, received[rank]);
  }
  for (int rank = 0; rank < clique->size; rank++) {
    memcpy(clique->ranks[rank]->current.to, received[rank], bytes[rank]);
    free(received[rank]);
  }
}

static int same(const struct fake_effect *one, const struct fake_effect *other) {
  return one->what == other->what && one->count == other->count && one->type == other->type &&
         one->op == other->op && one->other == other->other;
}
/* An operation of the communicator that waits has ended. */
static void complete(struct comm *comm) {
  comm->waits = 0;
  comm->turn++;
}
/* The kernel of an aborted rank runs to its end without waiting, and its peers' can end with what they receive from it. */
static void mislead(struct comm *comm) {
  const struct clique *clique = comm->clique;
  for (int rank = 0; rank < clique->size; rank++) {
    struct comm *peer = clique->ranks[rank];
    if (!peer || !peer->waits || peer->owner.released) continue;
    const struct fake_effect *effect = &peer->current;
    if (effect->to) memset(effect->to, GARBAGE, effect->count * type_size(effect->type));
    complete(peer);
  }
}
static int meet(const struct fake_effect *effect) {
  struct comm *comm = effect->comm;
  struct clique *clique = comm->clique;
  if (comm->owner.released) {
    if (comm->waits && fake_get(FAKE_MOVES_DATA) == FAKE_ABORTS_MISLEAD) mislead(comm);
    comm->waits = 0;
    return 1;
  }
  if (effect->number != comm->turn) return effect->number < comm->turn;
  comm->current = *effect;
  comm->waits = 1;
  for (int rank = 0; rank < clique->size; rank++) {
    const struct comm *peer = clique->ranks[rank];
    if (!peer || !peer->waits || peer->owner.released || !same(&peer->current, effect)) return 0;
  }
  move(clique);
  for (int rank = 0; rank < clique->size; rank++) complete(clique->ranks[rank]);
  return 1;
}

static int post(const struct fake_effect *effect) {
  struct comm *comm = effect->comm;
  const size_t bytes = effect->count * type_size(effect->type);
  struct message *message = malloc(sizeof *message + bytes), **last = &comm->clique->messages;
  *message = (struct message){.from = comm->rank, .to = effect->other, .bytes = bytes};
  memcpy(message->data, effect->from, bytes);
  while (*last) last = &(*last)->next;
  *last = message;
  return 1;
}
static int collect(const struct fake_effect *effect) {
  struct comm *comm = effect->comm;
  if (comm->owner.released) return 1;
  struct message **place = &comm->clique->messages, *message;
  while ((message = *place) && (message->from != effect->other || message->to != comm->rank))
    place = &message->next;
  if (!message || message->bytes != effect->count * type_size(effect->type)) return 0;
  memcpy(effect->to, message->data, message->bytes);
  *place = message->next;
  free(message);
  return 1;
}

void exchange(struct comm *comm, struct fake_effect *effect) {
  effect->comm = comm;
  effect->run = effect->reads == NEITHER ? collect : effect->writes == NEITHER ? post : meet;
  if (effect->run == meet) effect->numbers = &comm->owner.operations;
  const int known_type = effect->type <= BFLOAT16 && effect->type != FLOAT16;
  const int known = effect->op < 0 || (effect->op <= AVG && known_type);
  if (comm->clique && known) return;
  effect->run = NULL;
  fake_log("BUG: the fake cannot move the data of %s, type %d, op %d, on comm%d", effect->what, effect->type,
           effect->op, comm->name);
}

void end_exchange(struct comm *comm) {
  struct clique *clique = comm->clique;
  if (!clique) return;
  fake_lock();
  int is_last = ++clique->ended == clique->size;
  fake_unlock();
  for (int rank = 0; is_last && rank < clique->size; rank++)
    fake_wait_for_device(clique->ranks[rank]->device);
}
