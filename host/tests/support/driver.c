/* A driver with one device whose memory is the host's: what opening a device and moving bytes calls, and the rules that
 * callers must keep. Memory is touched with a context that is current on the thread, is freed once, and the primary
 * context is released as often as it is retained. */

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OK = 0, INVALID_VALUE = 1, INVALID_DEVICE = 101, INVALID_CONTEXT = 201, MOST = 64 };

static int primary; /* its address is the context */
static int retained;
static _Thread_local void *stack[MOST]; /* current is the last one */
static _Thread_local int depth;

int cuInit(unsigned flags) { return flags ? INVALID_VALUE : OK; }
int cuDriverGetVersion(int *version) { return *version = 13000, OK; }
int cuDeviceGetCount(int *count) { return *count = 1, OK; }
int cuDeviceGet(int *device, int ordinal) { return ordinal ? INVALID_DEVICE : (*device = 5, OK); }
int cuGetErrorName(int code, const char **name) { return *name = code ? "ERROR" : "SUCCESS", OK; }
int cuGetErrorString(int code, const char **text) { return cuGetErrorName(code, text); }

int cuDeviceGetName(char *name, int bytes, int device)
{
    return device != 5 ? INVALID_DEVICE : (snprintf(name, (size_t)bytes, "a device of the test"), OK);
}

int cuDeviceGetAttribute(int *value, int attribute, int device)
{
    (void)attribute; /* all are large enough for a device, and none is a compute capability without kernels */
    return device != 5 ? INVALID_DEVICE : (*value = attribute == 75 ? 9 : attribute == 76 ? 0 : 65536, OK);
}

int cuDevicePrimaryCtxRetain(void **context, int device)
{
    if (device != 5)
        return INVALID_DEVICE;
    __atomic_add_fetch(&retained, 1, __ATOMIC_SEQ_CST);
    return *context = &primary, OK;
}

int cuDevicePrimaryCtxRelease_v2(int device)
{
    if (device != 5 || __atomic_sub_fetch(&retained, 1, __ATOMIC_SEQ_CST) < 0)
        abort();
    return OK;
}

int cuCtxGetCurrent(void **context) { return *context = depth ? stack[depth - 1] : NULL, OK; }

int cuCtxSetCurrent(void *context)
{
    depth += !depth;
    return stack[depth - 1] = context, OK;
}

int cuCtxPushCurrent_v2(void *context)
{
    if (context != &primary || !retained || depth == MOST)
        return INVALID_CONTEXT;
    return stack[depth++] = context, OK;
}

int cuCtxPopCurrent_v2(void **context)
{
    if (!depth)
        return INVALID_CONTEXT;
    return *context = stack[--depth], OK;
}

static int has_context(void) { return depth && stack[depth - 1] == &primary && retained; }

int cuMemAlloc_v2(uint64_t *pointer, size_t bytes)
{
    if (!has_context())
        return INVALID_CONTEXT;
    void *memory = bytes ? aligned_alloc(256, (bytes + 255) / 256 * 256) : NULL;
    return memory ? (*pointer = (uintptr_t)memory, OK) : INVALID_VALUE;
}

int cuMemFree_v2(uint64_t pointer)
{
    if (!has_context())
        return INVALID_CONTEXT;
    free((void *)(uintptr_t)pointer); /* which ends the program if it was freed before */
    return OK;
}

int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t bytes)
{
    return has_context() ? (memcpy((void *)(uintptr_t)to, from, bytes), OK) : INVALID_CONTEXT;
}

int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t bytes)
{
    return has_context() ? (memcpy(to, (void *)(uintptr_t)from, bytes), OK) : INVALID_CONTEXT;
}

int cuStreamSynchronize(void *stream) { return stream || !has_context() ? INVALID_CONTEXT : OK; }

/* Called when the program ends. */
__attribute__((destructor)) static void report(void)
{
    if (retained)
        fprintf(stderr, "the primary context is retained %d times more than it is released\n", retained), _Exit(3);
}
