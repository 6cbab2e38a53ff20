/* Stands in for the CUDA or the HIP runtime (-DRUNTIME=cuda or hip): answers what a test sets, and says what it was
 * asked to launch. */
#include <stddef.h>
#include <stdio.h>

#include "fake_runtime.h"

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#define RUNTIME_(name) JOIN(RUNTIME, name)
#define REGISTER_(name) JOIN(__, JOIN(RUNTIME, name))

struct fake_runtime fake = {0, 10, 2, 0, 0, 0, 0};

struct dim3 {
    unsigned x, y, z;
};

int RUNTIME_(GetDevice)(int* device) {
    *device = fake.device;
    return fake.get_device_error;
}

int RUNTIME_(DeviceGetAttribute)(int* value, int attribute, int device) {
    (void)attribute;
    (void)device;
    *value = fake.processors;
    return 0;
}

int RUNTIME_(FuncSetAttribute)(const void* kernel, int attribute, int value) {
    (void)kernel;
    (void)attribute;
    fake.shared_asked_for = value;
    return 0;
}

int RUNTIME_(OccupancyMaxActiveBlocksPerMultiprocessor)(
    int* blocks, const void* kernel, int threads, size_t shared) {
    (void)kernel;
    (void)threads;
    (void)shared;
    ++fake.occupancy_queries;
    *blocks = fake.blocks_each;
    return 0;
}

static int launched(
    const void* kernel, struct dim3 grid, struct dim3 block, void** args, size_t shared, const void* stream) {
    printf(
        "launch of %u %u %u blocks, %u %u %u threads, %lu bytes, %s, %s, %s\n", grid.x, grid.y, grid.z, block.x,
        block.y, block.z, (unsigned long)shared, kernel == fake_entry() ? "the kernel" : "another kernel",
        args[0] == fake_args() ? "the arguments" : "other arguments", stream == &fake ? "the stream" : "another");
    return fake.launch_error;
}

int RUNTIME_(LaunchKernel)(
    const void* kernel, struct dim3 grid, struct dim3 block, void** args, size_t shared, void* stream) {
    return launched(kernel, grid, block, args, shared, stream);
}

/* As cudaLaunchConfig_t and cudaLaunchAttribute are laid out. */
struct attribute {
    int id;
    char pad[4];
    int value[16];
};
struct config {
    struct dim3 grid, block;
    size_t shared;
    void* stream;
    const struct attribute* attributes;
    unsigned count;
};

int RUNTIME_(LaunchKernelExC)(const struct config* config, const void* kernel, void** args) {
    for (unsigned i = 0; i < config->count; ++i) {
        printf("attribute %d: %d\n", config->attributes[i].id, config->attributes[i].value[0]);
    }
    return launched(kernel, config->grid, config->block, args, config->shared, config->stream);
}

const char* RUNTIME_(GetErrorString)(int code) {
    return code == 0 ? "no error" : "the runtime's words";
}

/* What compilers call to register kernels and in their stubs. */
void** REGISTER_(RegisterFatBinary)(void* image) {
    static void* handle;
    (void)image;
    return &handle;
}
void REGISTER_(RegisterFatBinaryEnd)(void** handle) {
    (void)handle;
}
void REGISTER_(UnregisterFatBinary)(void** handle) {
    (void)handle;
}
int REGISTER_(RegisterFunction)(void) {
    return 0;
}
int REGISTER_(PopCallConfiguration)(void) {
    return 0;
}
int REGISTER_(InitModule)(void) {
    return 1;
}
int REGISTER_(GetKernel)(void) {
    return 0;
}
int REGISTER_(LaunchKernel)(void) {
    return 0;
}
