/* Stands in for libnvrtc.so: NVRTC 13.0, whose every cubin is four bytes. */
#include "answer.h"

const char *nvrtcGetErrorString(int error) {
    if (answer("nvrtcGetErrorString")) return NULL;
    switch (error) {
#define E(n, name) \
    case n: return #name;
#include "nvrtc_errors.h"
    }
    return "NVRTC_ERROR unknown";
}

CALL(nvrtcVersion, (int *major, int *minor), *major = 13, *minor = 0)
CALL(nvrtcCreateProgram, (P *program, const char *source), *program = HANDLE)
CALL(nvrtcCompileProgram, (P program, int count, const char *const *options))
CALL(nvrtcGetProgramLogSize, (P program, size_t *bytes), *bytes = 4)
CALL(nvrtcGetProgramLog, (P program, char *log), memcpy(log, "log", 4))
CALL(nvrtcGetCUBINSize, (P program, size_t *bytes), *bytes = 4)
CALL(nvrtcGetCUBIN, (P program, char *cubin), memcpy(cubin, "\177ELF", 4))
CALL(nvrtcDestroyProgram, (P *program))
