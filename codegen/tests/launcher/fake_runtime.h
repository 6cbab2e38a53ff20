/* What a test sets, and what the launcher did. */
struct fake_runtime {
    int device;
    int processors;
    int blocks_each;
    int get_device_error;
    int launch_error;
    int occupancy_queries;
    int shared_asked_for;
};

extern struct fake_runtime fake;

/* The test's kernel and arguments, to compare with. */
const void* fake_entry(void);
const void* fake_args(void);
