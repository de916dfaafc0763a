/* Parameters and encryption of the fake NCCL. As in NCCL each has one type, and the getters of others refuse it. */
#include "library.h"

#include <stdio.h>
#include <string.h>

#if FAKE_VERSION >= 23004
static const struct parameter {
  const char *key, *text;
  char sign; /* 'i' or 'u', 's' for a string */
  int bytes;
  uint64_t value;
} parameters[] = {
  {"NCCL_FAKE_I8", "-8", 'i', 1, (uint64_t)-8},
  {"NCCL_FAKE_I16", "-1600", 'i', 2, (uint64_t)-1600},
  {"NCCL_FAKE_I32", "-320000", 'i', 4, (uint64_t)-320000},
  {"NCCL_FAKE_I64", "-9223372036854775808", 'i', 8, (uint64_t)INT64_MIN},
  {"NCCL_FAKE_U8", "200", 'u', 1, 200},
  {"NCCL_FAKE_U16", "60000", 'u', 2, 60000},
  {"NCCL_FAKE_U32", "4000000000", 'u', 4, 4000000000},
  {"NCCL_FAKE_U64", "ALL", 'u', 8, UINT64_MAX},
  {"NCCL_FAKE_TEXT", "WARN,\xc3\xa4", 's', 7, 0},
  {"NCCL_FAKE_EMPTY", "", 's', 0, 0},
};
enum { PARAMETERS = sizeof parameters / sizeof *parameters };

static const struct parameter *find(const char *key) {
  for (int i = 0; i < PARAMETERS; i++)
    if (!strcmp(parameters[i].key, key)) return &parameters[i];
  return NULL;
}

int ncclParamGetAllParameterKeys(const char ***table, int *length) {
  static _Thread_local const char *keys[PARAMETERS];
  for (int i = 0; i < PARAMETERS; i++) keys[i] = parameters[i].key;
  *table = keys;
  return *length = PARAMETERS, SUCCESS;
}
/* The text is thread-local, until the next call; the length excludes the NUL. */
int ncclParamGetParameter(const char *key, const char **value, int *length) {
  static _Thread_local char text[64];
  const struct parameter *parameter = find(key);
  if (!parameter) return INVALID_ARGUMENT;
  *value = strcpy(text, parameter->text);
  return *length = (int)strlen(text), SUCCESS;
}
int ncclParamBind(const struct parameter **handle, const char *key) {
  const struct parameter *found = find(key);
  if (found) *handle = found;
  return found ? SUCCESS : INVALID_ARGUMENT;
}
int ncclParamGetStr(const struct parameter *handle, const char **out) {
  static _Thread_local char text[64];
  if (handle->sign != 's') return INVALID_ARGUMENT;
  return *out = strcpy(text, handle->text), SUCCESS;
}
/* Copies the bytes of a number, or a string with its NUL. */
int ncclParamGet(const struct parameter *handle, void *out, int room, int *length) {
  int bytes = handle->sign == 's' ? handle->bytes + 1 : handle->bytes;
  *length = room < bytes ? 0 : bytes;
  if (room < bytes) return INVALID_ARGUMENT;
  /* The host is little-endian. */
  memcpy(out, handle->sign == 's' ? (const void *)handle->text : &handle->value, (size_t)bytes);
  return SUCCESS;
}
#define GETTER(name, letter, type) \
  int ncclParamGet##name(const struct parameter *handle, type *out) { \
    if (handle->sign != letter || handle->bytes != sizeof *out) return INVALID_ARGUMENT; \
    return *out = (type)handle->value, SUCCESS; \
  }
GETTER(I8, 'i', int8_t)
GETTER(I16, 'i', int16_t)
GETTER(I32, 'i', int32_t)
GETTER(I64, 'i', int64_t)
GETTER(U8, 'u', uint8_t)
GETTER(U16, 'u', uint16_t)
GETTER(U32, 'u', uint32_t)
GETTER(U64, 'u', uint64_t)

void ncclParamDumpAll(void) { fake_log("dump parameters"); }
#endif

#if FAKE_VERSION >= 23200
struct encryption {
  size_t size;
  unsigned magic, version;
  int mode;
  const char *secret;
};
int ncclSetEncryption(const struct encryption *encryption) {
  if (!encryption || encryption->magic != (unsigned)MAGIC || encryption->size != sizeof *encryption)
    return refuse(INVALID_ARGUMENT, "the configuration is wrong");
  int told = fake_take(FAKE_MANAGEMENT_RESULT);
  if (told) return refuse(told, "the fake was told to fail");
  fake_log("encryption mode %d psk %s", encryption->mode, encryption->secret ? encryption->secret : "null");
  return SUCCESS;
}
#endif
