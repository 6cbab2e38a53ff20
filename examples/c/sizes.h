/* What C makes of the emitted headers, for C++ to compare with. */
#ifndef SIZES_H
#define SIZES_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

struct sizes {
    int ranks; /* 0 ends the list */
    size_t dispatch_args;
    size_t combine_args;
};

extern const struct sizes sizes_in_c[];

#ifdef __cplusplus
}
#endif

#endif
