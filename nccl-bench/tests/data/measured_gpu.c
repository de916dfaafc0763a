/* Functions of the CUDA driver that a measurement needs and the fake lacks. Its kernels do nothing: the check of a result finds no wrong
 * element. */
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* The command line of the compiler renames the fake's. */
#undef cuInit
/* Fails before MPI_Init in a program with MPI: MPI_Init sets environment variables, and a driver reads them while it starts. */
int cuInit(unsigned flags) {
  int (*is_initialized)(int *);
  int done = 1;
  *(void **)&is_initialized = dlsym(RTLD_DEFAULT, "MPI_Initialized");
  if (is_initialized) is_initialized(&done);
  return flags != 0 || !done;
}

int cuMemGetInfo_v2(size_t *available, size_t *total) {
  return *available = *total = (size_t)16 << 30, 0;
}
int cuDeviceGetName(char *name, int length, int device) {
  return strncpy(name, "fake GPU", (size_t)length), device < 0;
}

int cuModuleLoadData(intptr_t *module, const char *image) {
  return *module = 1, image == 0;
}
int cuModuleUnload(intptr_t module) {
  return module != 1;
}
int cuModuleGetFunction(intptr_t *function, intptr_t module, const char *name) {
  return *function = 1, module != 1 || name == 0;
}
int cuLaunchKernel(intptr_t function, unsigned blocks, unsigned y, unsigned z, unsigned threads, unsigned threads_y,
                   unsigned threads_z, unsigned shared, intptr_t stream, void **arguments, void **extra) {
  (void)blocks, (void)y, (void)z, (void)threads, (void)threads_y, (void)threads_z;
  (void)shared, (void)stream, (void)arguments, (void)extra;
  return function != 1;
}
