/* As much of a CUDA driver as tells how many GPUs there are, and where. It is a test's own; nothing of it runs on one. */
enum { GPUS = 8, BUS = 33 /* CU_DEVICE_ATTRIBUTE_PCI_BUS_ID */ };

int cuInit(unsigned flags) {
  return (int)flags * 0;
}
int cuDriverGetVersion(int *version) {
  return *version = 13000, 0;
}
int cuDeviceGetCount(int *count) {
  return *count = GPUS, 0;
}
int cuDeviceGet(int *device, int ordinal) {
  return *device = ordinal, ordinal < 0 || ordinal >= GPUS ? 101 : 0;
}
int cuDeviceGetAttribute(int *value, int attribute, int device) {
  return *value = attribute == BUS ? 16 + device : 0, 0;
}
