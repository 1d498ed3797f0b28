/* A driver without a device, for cuda-bindings to load in place of libcuda.so.1: calls succeed, and launches are counted. */
#include <string.h>

static int nothing(void) { return 0; }
static __thread void *current;
static long launched;

static int one(int *value) { return *value = 1, 0; }
static int version(int *value) { return *value = 13000, 0; }
static int device(int *value, int ordinal) { return *value = ordinal, 0; }
static int attribute(int *value, int kind, int of) { return *value = 1 << 20, 0; }
static int name(char *text, int length, int of) { return strncpy(text, "imitation", length), 0; }
static int retain(void **context, int of) { return *context = &launched, 0; }
static int enter(void *context) { return current = context, 0; }
static int allocate(unsigned long long *address, unsigned long size) { return *address = 0x10000, 0; }
static int handle(void **made) { return *made = &launched, 0; }
static int capturing(void *stream, int *status) { return *status = 1, 0; } /* launches one by one, not as a graph */
static int text(int error, const char **found) { return *found = "ERROR", 0; }
static int launch(void) { return launched++, current ? 0 : 201; } /* CUDA_ERROR_INVALID_CONTEXT */

long imitation_launches(void) { return launched; }

static const struct { const char *name; void *function; } calls[] = {
    {"cuInit", nothing}, {"cuDriverGetVersion", version}, {"cuDeviceGetCount", one}, {"cuDeviceGet", device},
    {"cuDeviceGetAttribute", attribute}, {"cuDeviceGetName", name}, {"cuDevicePrimaryCtxRetain", retain},
    {"cuCtxSetCurrent", enter}, {"cuMemAlloc", allocate}, {"cuMemFree", nothing}, {"cuMemcpyHtoDAsync", nothing},
    {"cuMemcpyDtoHAsync", nothing}, {"cuMemsetD8Async", nothing}, {"cuModuleLoadDataEx", handle},
    {"cuModuleUnload", nothing}, {"cuModuleGetFunction", handle}, {"cuFuncSetAttribute", nothing},
    {"cuStreamCreate", handle}, {"cuStreamDestroy", nothing}, {"cuStreamIsCapturing", capturing},
    {"cuStreamSynchronize", nothing}, {"cuThreadExchangeStreamCaptureMode", nothing},
    {"cuGetErrorName", text}, {"cuGetErrorString", text}, {"cuLaunchKernel", launch},
    {"cuLaunchKernelEx", launch},
};

int cuGetProcAddress_v2(const char *wanted, void **found, int version, unsigned long long flags, int *status) {
    *found = 0;
    for (unsigned i = 0; i < sizeof calls / sizeof *calls; i++)
        if (!strcmp(wanted, calls[i].name)) *found = calls[i].function;
    if (!strcmp(wanted, "cuGetProcAddress")) *found = cuGetProcAddress_v2;
    if (status) *status = *found ? 0 : 1;
    return 0;
}

int cuGetProcAddress(const char *wanted, void **found, int version, unsigned long long flags) {
    return cuGetProcAddress_v2(wanted, found, version, flags, 0);
}
