/* Loaded into a program before it starts, looks for NCCL's profiler plugin in it as NCCL does, and says what it finds. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

/* What all versions of the plugin begin and go on with. */
struct plugin {
  const char *name;
  int (*init)(void);
  int (*start_event)(void *context, void **event, void *descriptor);
  int (*stop_event)(void *event);
};

__attribute__((constructor)) static void look(void) {
  void *program = dlopen(NULL, RTLD_NOW | RTLD_LOCAL);
  for (int version = 1; version <= 6; version++) {
    char name[32];
    snprintf(name, sizeof name, "ncclProfiler_v%d", version);
    struct plugin *plugin = program ? dlsym(program, name) : NULL;
    if (!plugin) {
      printf("%s: none\n", name);
      continue;
    }
    /* A group's event: its kind, in little endian of whatever size. */
    unsigned long long descriptor[16] = {1};
    void *event = NULL;
    int started = plugin->start_event(plugin, &event, descriptor);
    printf("%s: %s, event %s, results %d %d\n", name, plugin->name, event ? "given" : "null", started,
           plugin->stop_event(event));
  }
  fflush(stdout);
  _Exit(0);
}
