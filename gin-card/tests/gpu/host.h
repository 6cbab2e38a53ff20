// The host side that programs of GIN kernels share: failures, and a communicator of processes of one host.
#pragma once

#include <cuda_runtime.h>
#include <nccl.h>
#include <nccl_device.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <sys/inotify.h>
#include <poll.h>
#include <unistd.h>

static const char* result_file;

[[noreturn]] static void fail(const char* call, const std::string& why) {
    if (FILE* file = fopen(result_file, "w")) {
        fprintf(file, "{\"failed\": \"%s\", \"why\": \"%s\"}\n", call, why.c_str());
        fclose(file);
    }
    fprintf(stderr, "%s: %s\n", call, why.c_str());
    _exit(3);
}

#define CUDA(call)                                                             \
    do {                                                                       \
        cudaError_t error = (call);                                            \
        if (error != cudaSuccess) fail(#call, cudaGetErrorString(error));      \
    } while (0)
#define NCCL(call)                                                             \
    do {                                                                       \
        ncclResult_t result = (call);                                          \
        if (result != ncclSuccess) fail(#call, ncclGetErrorString(result));    \
    } while (0)

// Waits, for up to a minute, until the file is there as a whole: it is renamed into place.
static void wait_for(const std::string& path) {
    const std::string folder = path.substr(0, path.rfind('/'));
    const int watch = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    if (watch < 0 || inotify_add_watch(watch, folder.c_str(), IN_MOVED_TO) < 0) fail("inotify", strerror(errno));
    for (int seconds = 0; seconds < 60 && access(path.c_str(), R_OK) != 0; seconds++) {
        pollfd events{watch, POLLIN, 0};
        poll(&events, 1, 1000);
        char read_events[4096];
        if (read(watch, read_events, sizeof read_events) < 0 && errno != EAGAIN) fail("read", strerror(errno));
    }
    close(watch);
}

// The communicator of all processes. Rank 0 leaves its id in a file.
inline ncclComm_t join(const int rank, const int ranks, const std::string& id_file) {
    ncclUniqueId id;
    if (rank == 0) {
        NCCL(ncclGetUniqueId(&id));
        FILE* file = fopen((id_file + ".part").c_str(), "wb");
        if (!file || fwrite(&id, sizeof id, 1, file) != 1 || fclose(file) != 0) fail("id file", strerror(errno));
        if (rename((id_file + ".part").c_str(), id_file.c_str()) != 0) fail("rename", strerror(errno));
    } else {
        wait_for(id_file);
        FILE* file = fopen(id_file.c_str(), "rb");
        if (!file || fread(&id, sizeof id, 1, file) != 1) fail("id file", "rank 0 wrote none in a minute");
        fclose(file);
    }
    ncclComm_t comm;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.numRmaCtx = 0;
    NCCL(ncclCommInitRankConfig(&comm, ranks, id, rank, &config));
    return comm;
}

// What a communicator has, whose GIN is the proxy's.
inline ncclCommProperties_t by_proxy(const ncclComm_t comm) {
    ncclCommProperties_t properties = NCCL_COMM_PROPERTIES_INITIALIZER;
    NCCL(ncclCommQueryProperties(comm, &properties));
    if (properties.ginType != NCCL_GIN_TYPE_PROXY)
        fail("ginType", "it is " + std::to_string((int)properties.ginType) + " and not the proxy: was the card loaded?");
    return properties;
}
